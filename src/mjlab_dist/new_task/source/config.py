"""Text of the ``config.py`` of a new task, which the user reads and edits."""

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
        robot: The robot in the MJCF.
    """
    summary = "Walk forward" if robot.base else "Move the joints to target positions"
    return f'''{_imports_source(names, robot)}

{joined(_parts_source(robot))}


def {names.function}() -> TrainConfig:
    """{summary}, with {names.file}."""
    return TrainConfig(
        task={text(names.task)},
        # Number of envs (copies of the robot) on each GPU or CPU process. A GPU can simulate thousands.
        num_envs=512,
        # Each iteration is a rollout of 32 control steps in every env, and an update of the policy.
        max_iterations=300,
        env=_env(),
        # The learner, PPO. More flags: train {names.task} --help agent
        agent=AgentConfig(
            # Normalizes observations by their mean and standard deviation, so that terms need no scale.
            obs_normalization=True,
            # A larger entropy bonus leads to longer exploration.
            entropy_coef=0.002,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )


def _env() -> EnvConfig:
    return EnvConfig(
        sim=_sim(),
        # Time limit of an episode, in simulated seconds.
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
    imports += [name for name in FUNCTIONS if name != ("term" if robot.base else "termination")]
    imports += ["OptionsConfig"] if robot.has_pgs or robot.has_rk4 else []
    imports += ["ActuatorConfig"] if robot.motors else []
    modules = [name for name in MODULES if name != "terminations" or robot.base]
    return f'''"""The task {names.task}: simulation, observations, actions, rewards and terminations.

Every field is also a flag of the command line:
    train {names.task} --env.rewards.{"forward" if robot.base else "reached"}.weight 2
Terms are functions and classes, so that editors can jump to them and type checkers check their parameters. For a list
of all terms, and for writing your own, see docs/add-a-task.md of mjlab-dist.
"""

from mjlab_dist.config import (
{joined(f"    {name}," for name in sorted(imports))}
)
from mjlab_dist.mdp import {", ".join(modules)}
{_own_import_gap(names)}from {names.module} import terms'''


def _parts_source(robot: Robot) -> list[str]:
    """Return the constants that terms use as parameters."""
    if robot.base is None:
        return ["# The driven joints.", *tuple_lines("_JOINTS = ", robot.joints, "", 0)]
    return ["# The free joint of the robot's base.", f"_ROOT = {text(robot.base.joint)}"]


def _own_import_gap(names: Names) -> str:
    """Return the blank line that import sorters put before a package's own imports; empty in a checkout."""
    return "" if "." in names.module else "\n"


def _sim_source(names: Names, robot: Robot) -> str:
    # Model, start state and motors
    model = f"{names.module}.model:robot" if robot.lacks else f"{names.module}:{names.file}"
    what = f"model.py adds what {names.file} lacks." if robot.lacks else "The MJCF, a file of this package."
    lines = [f"# {what}", f"model={text(model)},"]
    if robot.keyframe is not None:
        lines += ["# The keyframe that episodes start from.", f"keyframe={text(robot.keyframe)},"]
    if robot.motors:
        lines += _motors_source(robot.motors)
    # Options that differ from the MJCF
    if robot.has_pgs or robot.has_rk4:
        lines += ["options=OptionsConfig("]
        if robot.has_pgs:
            lines += ["    # The MJCF uses PGS, which MuJoCo Warp does not support.", '    solver="newton",']
        if robot.has_rk4:
            lines += ["    # The MJCF uses RK4, which takes four times as long.", '    integrator="implicitfast",']
        lines += ["),"]
    # Step and buffer sizes
    lines += [
        f"# Physics steps per control step; the result is {robot.control_hz:.4g} control steps per second.",
        f"decimation={robot.decimation},",
        "# Maximum number of constraints and of contacts per env. If a value is too small, some of them are dropped,",
        "# and training reports it; if it is too large, steps take longer. Measure the values for this task with",
        f"#     mjlab-dist size-buffers {names.task}",
        f"njmax={robot.njmax},",
        f"nconmax={robot.nconmax},",
        "# Off to save time: poses and sensors are then one substep late, but no term below reads them.",
        "forward_before_observation=False,",
    ]
    return indented(lines, 8)


def _motors_source(motors: dict[str, Motors]) -> list[str]:
    lines = [
        "# The MJCF has no actuators. These motors hold target positions. Their parameters are estimates from the",
        "# weight of the robot: replace them with those of your motors. Units: N m/rad, N m s/rad and N m (slide",
        "# joints: N/m, N s/m and N).",
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
    "position": "Position motors: target = position in the start state + scale * action.",
    "velocity": "Velocity motors: target = offset + scale * action.",
    "effort": "Torque or force motors: input = offset + scale * action.",
}


def _actions_source(robot: Robot) -> str:
    lines = ["# Actions of the policy. Actuators are selected by name or by regular expressions."]
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
        # The start state of the MJCF penetrates the ground; this lifts it, in m.
        z_m=({rounded_up(base.rise_m)!r}, {rounded_up(base.rise_m)!r}),
        yaw_rad=(-3.14, 3.14),
        joint=_ROOT,
    )"""
    lines = f"""# Observations of the policy. Add a second group named critic for the value function only.
observations={{
    "actor": {{
        # Direction of gravity in the robot's frame, velocities of the robot, and its height.
        "gravity": observation(observations.projected_gravity, joint=_ROOT),
        "velocity": observation(observations.base_linear_velocity, joint=_ROOT),
        "turning": observation(observations.base_angular_velocity, joint=_ROOT),
        "height": observation(observations.base_height, joint=_ROOT),
        # All hinge and slide joints.
        "positions": observation(observations.JointPositions),
        "velocities": observation(observations.JointVelocities),
        "last_action": observation(observations.last_action),
    }},
}},
# Reward per control step: the sum of weight * term. The console prints the mean of each term.
rewards={{
    # 1 at {speed!r} m/s forward, see terms.py.
    "forward": reward(1.0, terms.forward_speed, max_m_s={speed!r}, joint=_ROOT),
    # 1 in every step in which the episode is not terminated.
    "alive": reward(0.5, rewards.alive),
    # A cost for large actions.
    "effort": reward({size!r}, rewards.action_size),
}},
# Conditions that end an episode before its time limit.
terminations={{""".splitlines()
    if base.is_upright:
        lines += [
            "    # The base is tilted by more than this angle.",
            '    "tilted": termination(terminations.tilted, max_rad=1.0, joint=_ROOT),',
        ]
    lines += f"""    # The base is lower than this height.
    "fallen": termination(terminations.too_low, min_m={rounded(base.min_height_m)!r}, joint=_ROOT),
}},
# Events at the start of an episode.
events={{
    # The robot starts with a random heading.
    "start": {start},
    # Joints start near the start state, within their limits.
    "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
    # Pushes every 5 to 10 seconds make the policy robust; uncomment to enable them:
    # "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),
}},""".splitlines()
    return indented(lines, 8)


def _fixed_source(robot: Robot) -> str:
    size = rounded(-0.05 / max(1, len(robot.joints)))
    lines = f"""# Commands: target positions of the joints, resampled every few seconds. See terms.py.
commands={{
    # Targets differ from the start state by at most reach, in rad (slide joints: m), within the joint limits.
    "target": term(terms.JointTargets, joints=_JOINTS, reach=1.0, resample_s=(2.0, 4.0)),
}},
# Observations of the policy. Add a second group named critic for the value function only.
observations={{
    "actor": {{
        # Distances to the targets.
        "to_target": observation(terms.ToTarget, command="target", joints=_JOINTS),
        # All hinge and slide joints.
        "positions": observation(observations.JointPositions),
        "velocities": observation(observations.JointVelocities),
        "last_action": observation(observations.last_action),
    }},
}},
# Reward per control step: the sum of weight * term. The console prints the mean of each term.
rewards={{
    # A cost for the distance of joints from their targets, which has a gradient also far away from them.
    "distance": reward(-0.3, terms.Distance, command="target", joints=_JOINTS),
    # 1 if all joints are at their targets.
    "reached": reward(1.0, terms.Reached, command="target", joints=_JOINTS, std=0.3),
    # A cost for large actions.
    "effort": reward({size!r}, rewards.action_size),
}},
# Conditions that end an episode before its time limit: none.
terminations={{
    # "broken": termination(terms.your_function),  # import termination from mjlab_dist.config
}},
# Events at the start of an episode.
events={{
    # Joints start near the start state, within their limits.
    "joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.5, 0.5)),
}},""".splitlines()
    return indented(lines, 8)
