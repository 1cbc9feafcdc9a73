"""The text of a new task's ``config.py``, which a person reads from top to bottom and changes."""

from __future__ import annotations

from mjlab_dist.new_task.actuation import Block, Motors
from mjlab_dist.new_task.base import Base
from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.rounding import rounded, rounded_up
from mjlab_dist.new_task.source.names import FUNCTIONS, MODULES, Names
from mjlab_dist.new_task.source.python import indented, joined, text, tuple_lines


def config_source(names: Names, robot: Robot) -> str:
    """Return the text of ``config.py``.

    Args:
        names: Names of the task and its files.
        robot: What was found in the MJCF.
    """
    summary = "Walk forward" if robot.base else "Bring the joints to where they are told"
    return f'''{_imports_source(names, robot)}

{joined(_parts_source(robot))}


def {names.function}() -> TrainConfig:
    """{summary}, with {names.file}."""
    return TrainConfig(
        task={text(names.task)},
        # Copies of the robot that learn side by side, on each GPU or CPU process; a GPU has room for thousands.
        num_envs=512,
        # Iterations: each is a rollout of 32 control steps of every copy, and an update of the policy.
        max_iterations=300,
        env=_env(),
        # The learner, PPO. More flags: train {names.task} --help agent
        agent=AgentConfig(
            # Observations are scaled by their mean and standard deviation, so that none needs a scale of its own.
            obs_normalization=True,
            # A larger bonus explores longer.
            entropy_coef=0.002,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=_sim(),
        # Simulated seconds until an episode ends by itself, and the next one starts.
        episode_length_s=10.0,
{_actions_source(robot)}
{_floating_source(robot.base, robot) if robot.base else _fixed_source(robot)}
    )


def _sim() -> SimConfig:
    return SimConfig(
{_sim_source(names, robot)}
    )
'''


def _imports_source(names: Names, robot: Robot) -> str:
    imports = ["ActionConfig", "AgentConfig", "EnvConfig", "SimConfig", "TrainConfig"]
    imports += FUNCTIONS
    imports += ["OptionsConfig"] if robot.has_pgs or robot.has_rk4 else []
    imports += ["ActuatorConfig"] if robot.motors else []
    modules = [name for name in MODULES if name != "terminations" or robot.base]
    return f'''"""The task {names.task}: what is simulated, what the policy sees and does, what it is rewarded for.

All of it is data, and every field is also a flag:
    train {names.task} --env.rewards.{"forward" if robot.base else "reached"}.weight 2
Terms are functions and classes: editors jump to them, and type checkers check their parameters. The terms of
mjlab-dist, and how to write your own: docs/add-a-task.md of mjlab-dist.
"""

from mjlab_dist.config import (
{joined(f"    {name}," for name in sorted(imports))}
)
from mjlab_dist.mdp import {", ".join(modules)}
{_own_import_gap(names)}from {names.module} import terms'''


def _parts_source(robot: Robot) -> list[str]:
    """Return the constants that are parameters of terms."""
    if robot.base is None:
        return ["# The joints that are driven.", *tuple_lines("_JOINTS = ", robot.joints, "", 0)]
    return ["# The free joint of the robot's base.", f"_ROOT = {text(robot.base.joint)}"]


def _own_import_gap(names: Names) -> str:
    """Return what import sorters put before imports of the task's own package: a blank line unless in a checkout."""
    return "" if "." in names.module else "\n"


def _sim_source(names: Names, robot: Robot) -> str:
    model = f"{names.module}.model:robot" if robot.lacks else f"{names.module}:{names.file}"
    what = f"What {names.file} lacks is added by model.py." if robot.lacks else "The MJCF, a file of this package."
    lines = [f"# {what}", f"model={text(model)},"]
    if robot.keyframe is not None:
        lines += ["# The keyframe that episodes start from.", f"keyframe={text(robot.keyframe)},"]
    if robot.motors:
        lines += _motors_source(robot.motors)
    if robot.has_pgs or robot.has_rk4:
        lines += ["options=OptionsConfig("]
        if robot.has_pgs:
            lines += ["    # The MJCF asks for PGS, which MuJoCo Warp does not have.", '    solver="newton",']
        if robot.has_rk4:
            lines += ["    # The MJCF asks for RK4, which takes four times as long.", '    integrator="implicitfast",']
        lines += ["),"]
    lines += [
        f"# Physics steps per control step, which makes {robot.control_hz:.4g} control steps per second.",
        f"decimation={robot.decimation},",
        "# Room for constraints and for contacts, per copy. If it is too small, some are dropped, and training reports",
        "# it; if it is too large, steps take longer. Measure what the task needs:",
        f"#     mjlab-dist size-buffers {names.task}",
        f"njmax={robot.njmax},",
        f"nconmax={robot.nconmax},",
        "# Poses and sensors are a substep late, which does not matter here: no term below reads any.",
        "forward_before_observation=False,",
    ]
    return indented(lines, 8)


def _motors_source(motors: dict[str, Motors]) -> list[str]:
    lines = [
        "# The MJCF has no actuators: these motors hold target positions. Their numbers are guesses from the robot's",
        "# weight; replace them by those of your motors. Units: N m/rad, N m s/rad and N m; of slide joints N/m, N s/m",
        "# and N.",
        "actuators={",
    ]
    for name, motor in motors.items():
        lines += [
            f"    {text(name)}: ActuatorConfig(",
            *(f"        {line}" for line in tuple_lines("joints=", motor.joints, ",", 16)),
            f"        stiffness={motor.stiffness!r},",
            f"        damping={motor.damping!r},",
            f"        effort_limit={motor.effort_limit!r},",
            "    ),",
        ]
    return [*lines, "},"]


_MEANINGS = {
    "position": "Motors that hold a position: an action of 0 is that of the start state, 1 is further by scale.",
    "velocity": "Motors that hold a velocity: an action of 1 is scale.",
    "effort": "Motors whose input is a torque or force: an action of 1 is scale.",
}


def _actions_source(robot: Robot) -> str:
    lines = ["# What the policy does: actuators by name, or regular expressions of their names."]
    lines += ["actions={"]
    for name, block in robot.blocks.items():
        lines += _block_source(name, block)
    return indented([*lines, "},"], 8)


def _block_source(name: str, block: Block) -> list[str]:
    offset = text(block.offset) if isinstance(block.offset, str) else repr(block.offset)
    return [
        f"    # {_MEANINGS[block.kind]}",
        f"    {text(name)}: ActionConfig(",
        *(f"        {line}" for line in tuple_lines("actuators=", block.actuators, ",", 16)),
        f"        scale={block.scale!r},",
        *([] if block.offset == 0.0 else [f"        offset={offset},"]),
        "    ),",
    ]


def _floating_source(base: Base, robot: Robot) -> str:
    size = rounded(-0.05 / max(1, len(robot.joints)))
    speed = rounded(base.speed_m_s)
    start = "event(events.DrawRoot, yaw_rad=(-3.14, 3.14), joint=_ROOT)"
    if base.rise_m:
        start = f"""event(
        events.DrawRoot,
        # The start state of the MJCF is in the ground; this lifts it, in m.
        z_m=({rounded_up(base.rise_m)!r}, {rounded_up(base.rise_m)!r}),
        yaw_rad=(-3.14, 3.14),
        joint=_ROOT,
    )"""
    lines = f"""# What the policy sees. A second group named critic would be for the value function only.
observations={{
    "actor": {{
        # Direction of gravity in the robot's frame, and its velocities.
        "gravity": observation(observations.projected_gravity, joint=_ROOT),
        "velocity": observation(observations.base_linear_velocity, joint=_ROOT),
        "turning": observation(observations.base_angular_velocity, joint=_ROOT),
        "height": observation(observations.base_height, joint=_ROOT),
        # Hinge and slide joints, all of them.
        "positions": observation(observations.JointPositions),
        "velocities": observation(observations.JointVelocities),
        "last_action": observation(observations.last_action),
    }},
}},
# What it is rewarded for, per control step: the sum of weight * term. The console shows what each term earns.
rewards={{
    # 1 at {speed!r} m/s forward: see terms.py.
    "forward": reward(1.0, terms.forward_speed, max_m_s={speed!r}, joint=_ROOT),
    # 1 as long as it has not fallen.
    "alive": reward(0.5, rewards.alive),
    # A cost for large actions.
    "effort": reward({size!r}, rewards.action_size),
}},
# What ends an episode early.
terminations={{""".splitlines()
    if base.is_upright:
        lines += [
            "    # It leans by more than this.",
            '    "tilted": term(terminations.tilted, max_rad=1.0, joint=_ROOT),',
        ]
    lines += f"""    # Its base is lower than this.
    "fallen": term(terminations.too_low, min_m={rounded(base.min_height_m)!r}, joint=_ROOT),
}},
# What happens when an episode starts.
events={{
    # The robot starts with a random heading.
    "start": {start},
    # Its joints start near the start state, within their limits.
    "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
    # Pushes every 5 to 10 seconds make it robust; remove the # to turn them on:
    # "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),
}},""".splitlines()
    return indented(lines, 8)


def _fixed_source(robot: Robot) -> str:
    size = rounded(-0.05 / max(1, len(robot.joints)))
    lines = f"""# What the policy is told to do: positions for the joints, drawn again every few seconds. See terms.py.
commands={{
    # Targets are up to reach away from the start state, in rad (slide joints: m), within the joints' limits.
    "target": term(terms.JointTargets, joints=_JOINTS, reach=1.0, resample_s=(2.0, 4.0)),
}},
# What the policy sees. A second group named critic would be for the value function only.
observations={{
    "actor": {{
        # Distances to the targets.
        "to_target": observation(terms.ToTarget, command="target", joints=_JOINTS),
        # Hinge and slide joints, all of them.
        "positions": observation(observations.JointPositions),
        "velocities": observation(observations.JointVelocities),
        "last_action": observation(observations.last_action),
    }},
}},
# What it is rewarded for, per control step: the sum of weight * term. The console shows what each term earns.
rewards={{
    # A cost for the distance of joints from their targets, which also guides joints that are far away.
    "distance": reward(-0.3, terms.Distance, command="target", joints=_JOINTS),
    # 1 if every joint is at its target.
    "reached": reward(1.0, terms.Reached, command="target", joints=_JOINTS, std=0.3),
    # A cost for large actions.
    "effort": reward({size!r}, rewards.action_size),
}},
# What ends an episode early: nothing here.
terminations={{
    # "broken": term(terms.your_function),
}},
# What happens when an episode starts.
events={{
    # Joints start around the start state, within their limits.
    "joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.5, 0.5)),
}},""".splitlines()
    return indented(lines, 8)
