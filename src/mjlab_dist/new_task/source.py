"""The text of a new task's files: Python that a person reads from top to bottom, and changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mjlab_dist.new_task.actuation import Block, Motors
from mjlab_dist.new_task.base import Base
from mjlab_dist.new_task.robot import Robot
from mjlab_dist.new_task.rounding import rounded, rounded_up

WIDTH = 120
"""Longest line."""

FUNCTIONS = ("event", "observation", "reward", "term")
"""Functions that a config imports."""

MODULES = ("events", "observations", "rewards", "terminations")
"""Modules of ``mjlab_dist.mdp`` that a config imports."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a task and its files are called."""

    task: str
    """The task, as train knows it."""
    module: str
    """The Python package that holds it."""
    function: str
    """The function that makes its config."""
    file: str
    """The MJCF, in the package."""


def function_name(module: str) -> str:
    """Return the name of the function that makes a task's config: its module's, unless the config imports something of that name.

    Args:
        module: The module's last name.
    """
    return f"{module}_task" if module in (*FUNCTIONS, *MODULES, "terms") else module


def package_source(names: Names) -> str:
    """Return the text of the package's ``__init__.py``.

    Args:
        names: What things are called.
    """
    return f'''"""The task {names.task}."""

from mjlab_dist.config import lazy_modules

# Lets list-tasks read the config without importing torch. Without this line everything works, but slower.
__getattr__ = lazy_modules(__name__, "terms")
'''


def config_source(names: Names, robot: Robot) -> str:
    """Text of ``config.py``.

    Args:
        names: What things are called.
        robot: What was found in the MJCF.
    """
    imports = ["ActionConfig", "AgentConfig", "EnvConfig", "SimConfig", "TrainConfig"]
    imports += FUNCTIONS
    imports += ["OptionsConfig"] if robot.has_pgs or robot.has_rk4 else []
    imports += ["ActuatorConfig"] if robot.motors else []
    modules = [name for name in MODULES if name != "terminations" or robot.base]
    summary = "Walk forward" if robot.base else "Bring the joints to where they are told"
    return f'''"""The task {names.task}: what is simulated, what the policy sees and does, what it is rewarded for.

All of it is data, and every field is also a flag: train {names.task} --env.rewards.{"forward" if robot.base else "reached"}.weight 2
Terms are functions and classes: editors jump to them, and type checkers check their parameters. The terms of mjlab-dist, and how to
write your own: docs/add-a-task.md of mjlab-dist.
"""

from mjlab_dist.config import (
{_lines(f"    {name}," for name in sorted(imports))}
)
from mjlab_dist.mdp import {", ".join(modules)}
{_own_import_gap(names)}from {names.module} import terms

{_lines(_parts_source(robot))}


def {names.function}() -> TrainConfig:
    """{summary}, with {names.file}."""
    return TrainConfig(
        task={_text(names.task)},
        # Copies of the robot that learn side by side, on each GPU or CPU process; a GPU has room for thousands.
        num_envs=512,
        # Iterations: each is a rollout of 32 control steps of every copy, and an update of the policy.
        max_iterations=300,
        env=EnvConfig(
{_sim_source(names, robot)}
            # Simulated seconds until an episode ends by itself, and the next one starts.
            episode_length_s=10.0,
{_actions_source(robot)}
{_floating_source(robot.base, robot) if robot.base else _fixed_source(robot)}
        ),
        # The learner, PPO. More flags: train {names.task} --help agent
        agent=AgentConfig(
            # Observations are scaled by what is seen, so that none needs a scale of its own.
            obs_normalization=True,
            # A larger bonus explores longer.
            entropy_coef=0.002,
            use_clipped_value_loss=False,
            actor_hidden_dims=(128, 128),
            critic_hidden_dims=(128, 128),
        ),
    )
'''


def _parts_source(robot: Robot) -> list[str]:
    """Return the constants that are parameters of terms."""
    if robot.base is None:
        return ["# The joints that are driven.", *_tuple("_JOINTS = ", robot.joints, "", 0)]
    return ["# The free joint of the robot's base.", f"_ROOT = {_text(robot.base.joint)}"]


def _own_import_gap(names: Names) -> str:
    """Return what import sorters put before imports of the task's own package: in a checkout nothing, else a blank line."""
    return "" if "." in names.module else "\n"


def _sim_source(names: Names, robot: Robot) -> str:
    model = f"{names.module}.model:robot" if robot.lacks else f"{names.module}:{names.file}"
    lines = ["sim=SimConfig("]
    lines += [
        f"    # What {names.file} lacks is put into it by model.py."
        if robot.lacks
        else "    # The MJCF, a file of this package.",
        f"    model={_text(model)},",
    ]
    if robot.keyframe is not None:
        lines += ["    # The keyframe that episodes start from.", f"    keyframe={_text(robot.keyframe)},"]
    if robot.motors:
        lines += _motors_source(robot.motors)
    if robot.has_pgs or robot.has_rk4:
        lines += ["    options=OptionsConfig("]
        if robot.has_pgs:
            lines += ["        # The MJCF asks for PGS, which MuJoCo Warp does not have.", '        solver="newton",']
        if robot.has_rk4:
            lines += [
                "        # The MJCF asks for RK4, which takes four times as long.",
                '        integrator="implicitfast",',
            ]
        lines += ["    ),"]
    lines += [
        f"    # Physics steps per control step, which makes {robot.control_hz:.4g} control steps a second.",
        f"    decimation={robot.decimation},",
        "    # Room for constraints and for contacts, per copy. Where it is too small some are dropped, and training says so; where",
        f"    # it is too large, that costs time. Measure what it takes: mjlab-dist size-buffers {names.task}",
        f"    njmax={robot.njmax},",
        f"    nconmax={robot.nconmax},",
        "    # Poses and sensors are a substep late, which does not matter here: no term below reads any.",
        "    forward_before_observation=False,",
        "),",
    ]
    return _indented(lines, 12)


def _motors_source(motors: dict[str, Motors]) -> list[str]:
    lines = [
        "    # The MJCF has no actuators: these motors hold target positions. Their numbers are guesses from the robot's weight; put",
        "    # in those of your motors. Units: N m/rad, N m s/rad and N m; of slide joints N/m, N s/m and N.",
        "    actuators={",
    ]
    for name, motor in motors.items():
        lines += [
            f"        {_text(name)}: ActuatorConfig(",
            *(f"            {line}" for line in _tuple("joints=", motor.joints, ",", 28)),
            f"            stiffness={motor.stiffness!r},",
            f"            damping={motor.damping!r},",
            f"            effort_limit={motor.effort_limit!r},",
            "        ),",
        ]
    return [*lines, "    },"]


_MEANINGS = {
    "position": "Motors that hold a position: an action of 0 holds that of the start state, 1 one further by scale.",
    "velocity": "Motors that hold a velocity: an action of 1 asks for scale.",
    "effort": "Motors whose input is a torque or force: an action of 1 puts in scale.",
}


def _actions_source(robot: Robot) -> str:
    lines = ["# What the policy does: actuators by name, or regular expressions of their names."]
    lines += ["actions={"]
    for name, block in robot.blocks.items():
        lines += _block_source(name, block)
    return _indented([*lines, "},"], 12)


def _block_source(name: str, block: Block) -> list[str]:
    offset = _text(block.offset) if isinstance(block.offset, str) else repr(block.offset)
    return [
        f"    # {_MEANINGS[block.kind]}",
        f"    {_text(name)}: ActionConfig(",
        *(f"        {line}" for line in _tuple("actuators=", block.actuators, ",", 20)),
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
        # The MJCF's own start state is in the ground; this lifts it, in m.
        z_m=({rounded_up(base.rise_m)!r}, {rounded_up(base.rise_m)!r}),
        yaw_rad=(-3.14, 3.14),
        joint=_ROOT,
    )"""
    lines = f"""# What the policy sees. A second group, critic, would be for the value function only.
observations={{
    "actor": {{
        # Which way is down, in the robot's frame, and how it moves.
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
    "forward": reward(1.0, terms.forward_speed, most_m_s={speed!r}, joint=_ROOT),
    # 1 as long as it has not fallen.
    "alive": reward(0.5, rewards.alive),
    # Large actions cost something.
    "effort": reward({size!r}, rewards.action_size),
}},
# What ends an episode early.
terminations={{""".splitlines()
    if base.is_upright:
        lines += [
            "    # It leans by more than this.",
            '    "tilted": term(terminations.tilted, most_rad=1.0, joint=_ROOT),',
        ]
    lines += f"""    # Its base is lower than this.
    "fallen": term(terminations.too_low, least_m={rounded(base.least_height_m)!r}, joint=_ROOT),
}},
# What happens when an episode starts.
events={{
    # The robot looks anywhere.
    "start": {start},
    # Its joints are a little off, and within their limits.
    "joints": event(events.DrawJoints, position=(-0.1, 0.1)),
    # Pushes, every 5 to 10 seconds, make it robust; take the # away:
    # "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),
}},""".splitlines()
    return _indented(lines, 12)


def _fixed_source(robot: Robot) -> str:
    size = rounded(-0.05 / max(1, len(robot.joints)))
    lines = f"""# What the policy is told, drawn anew every few seconds: positions for the joints. See terms.py.
commands={{
    # Targets are at most reach away from the start state, in rad (slide joints: m), and within the joints' limits.
    "target": term(terms.JointTargets, joints=_JOINTS, reach=1.0, resample_s=(2.0, 4.0)),
}},
# What the policy sees. A second group, critic, would be for the value function only.
observations={{
    "actor": {{
        # How far it is to the targets.
        "to_target": observation(terms.ToTarget, command="target", joints=_JOINTS),
        # Hinge and slide joints, all of them.
        "positions": observation(observations.JointPositions),
        "velocities": observation(observations.JointVelocities),
        "last_action": observation(observations.last_action),
    }},
}},
# What it is rewarded for, per control step: the sum of weight * term. The console shows what each term earns.
rewards={{
    # How far the joints are from their targets costs something, also where that is far.
    "distance": reward(-0.3, terms.Distance, command="target", joints=_JOINTS),
    # 1 with every joint at its target.
    "reached": reward(1.0, terms.Reached, command="target", joints=_JOINTS, std=0.3),
    # Large actions cost something.
    "effort": reward({size!r}, rewards.action_size),
}},
# What ends an episode early: here nothing does.
terminations={{
    # "broken": term(terms.your_function),
}},
# What happens when an episode starts.
events={{
    # Joints start anywhere around the start state, and within their limits.
    "joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.5, 0.5)),
}},""".splitlines()
    return _indented(lines, 12)


def terms_source(names: Names, robot: Robot) -> str:
    """Text of ``terms.py``.

    Args:
        names: What things are called.
        robot: What was found in the MJCF.
    """
    # The import sorter of this project's checkout tells its own packages from others'.
    gap = "\n" if "." in names.module else ""
    head = f'''"""Terms of the task {names.task}: each works on all copies of the robot at once, on the device.

A row of a tensor is a copy. Nothing here may wait for the device: no .item(), .cpu(), print or if on a tensor's numbers, and no
mask as an index; use torch.where.
"""

import torch
{gap}from mjlab_dist.env import Env
'''
    return head + (_FLOATING_TERMS if robot.base else _FIXED_TERMS)


_FLOATING_TERMS = '''from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, most_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: the robot's speed along its own x axis as a share of most_m_s, at most 1; (num_envs,)."""
    return base_linear_velocity(env, joint)[:, 0].clamp(-most_m_s, most_m_s) / most_m_s
'''

_FIXED_TERMS = '''from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Term


class JointTargets(Command):
    """Command: positions for joints, in rad or m; (num_envs, joints).

    A class is made once, with the env: it looks up names and allocates there, and is then called at every step.
    """

    def __init__(self, env: Env, joints: tuple[str, ...], reach: float, resample_s: tuple[float, float]) -> None:
        """Find out between what limits targets are drawn."""
        found = env.find_joints(joints)
        start = found.qpos.of(env.reference.qpos)[0].clamp(found.lower, found.upper)
        low = torch.maximum(found.lower, start - reach)
        high = torch.minimum(found.upper, start + reach)
        ranges = list(zip(low.tolist(), high.tolist(), strict=True))
        super().__init__(env, ranges, len(ranges), resample_s)

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every command takes the env)
        """Draw targets for the envs of a mask, (num_envs,) of bool."""
        write_rows(self.value, mask, self.uniform())


class ToTarget(Term):
    """Observation: how far joints are from their targets, in rad or m; (num_envs, joints)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...]) -> None:
        """Look up the joints."""
        self._command = command
        self._columns = env.find_joints(joints).qpos

    def __call__(self, env: Env) -> torch.Tensor:
        """Observe."""
        return env.command(self._command) - self._columns.of(env.sim.qpos)


class Distance(Term):
    """Reward: mean distance of joints from their targets, in rad or m; (num_envs,)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...]) -> None:
        """Look up the joints."""
        self._to_target = ToTarget(env, command, joints)

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        return self._to_target(env).abs().mean(dim=1)


class Reached(Term):
    """Reward: the mean over joints of exp(-distance^2 / std^2), 1 with all of them at their targets; (num_envs,)."""

    def __init__(self, env: Env, command: str, joints: tuple[str, ...], std: float) -> None:
        """Look up the joints."""
        self._to_target = ToTarget(env, command, joints)
        self._std = std

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        return torch.exp(-(self._to_target(env) / self._std).square()).mean(dim=1)
'''


def model_source(names: Names, robot: Robot) -> str:
    """Text of ``model.py``, where the MJCF lacks something.

    Args:
        names: What things are called.
        robot: What was found in the MJCF.
    """
    lacks = robot.lacks
    body = [
        *_names_source("joints", "Joints", lacks.joint_names),
        *_names_source("actuators", "Actuators", lacks.actuator_names),
    ]
    if lacks.keyframe_name is not None:
        body += ["# The keyframe without a name.", f"spec.keys[0].name = {_text(lacks.keyframe_name)}"]
    if lacks.ground:
        body += _GROUND.splitlines()
    if lacks.camera and robot.base is not None:
        body += [
            "# A camera that follows the robot, for play --video.",
            f"spec.joint({_text(robot.base.joint)}).parent.add_camera(",
            '    name="track",',
            "    mode=mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM,",
            f"    pos=[0.0, {_camera_m(robot.base)!r}, {rounded(-_camera_m(robot.base) / 3)!r}],",
            "    xyaxes=[1.0, 0.0, 0.0, 0.0, 0.3, 1.0],",
            ")",
        ]
    return f'''"""The model of the task {names.task}: {names.file}, with what it lacks. Change the MJCF here, or write into the file itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mujoco


def robot() -> mujoco.MjSpec:
    """{names.file}, with what it lacks."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(Path(__file__).parent / {_text(names.file)}))
{_indented(body, 4)}
    return spec
'''


_GROUND = """# A floor, without which the robot would fall for ever.
spec.add_texture(
    name="tiles",
    type=mujoco.mjtTexture.mjTEXTURE_2D,
    builtin=mujoco.mjtBuiltin.mjBUILTIN_CHECKER,
    rgb1=[0.93, 0.94, 0.95],
    rgb2=[0.83, 0.85, 0.88],
    width=256,
    height=256,
)
tiles = spec.add_material(name="tiles", texrepeat=[1.0, 1.0], texuniform=True)
tiles.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "tiles"
spec.worldbody.add_geom(
    name="floor",
    type=mujoco.mjtGeom.mjGEOM_PLANE,
    size=[0.0, 0.0, 0.1],
    contype=1,
    conaffinity=1,
    material="tiles",
)"""


def _names_source(attribute: str, what: str, names: dict[int, str]) -> list[str]:
    if not names:
        return []
    return [
        f"# {what} without a name, by their place in the file; the config calls them by name.",
        "for i, name in {",
        *(f"    {i}: {_text(name)}," for i, name in names.items()),
        "}.items():",
        f"    spec.{attribute}[i].name = name",
    ]


def project_source(names: Names) -> str:
    """Text of the ``pyproject.toml`` of a package of its own.

    Args:
        names: What things are called.
    """
    return f'''[project]
name = "{names.task}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["mjlab-dist"]

# What train, play and list-tasks find the task by: its name, and the function that makes its config.
[project.entry-points."mjlab_dist.tasks"]
{entry_point(names)}

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{names.module}"]
ignore-vcs = true # meshes that a .gitignore names are packed, too
'''


def entry_point(names: Names) -> str:
    """The line that tells others of a task.

    Args:
        names: What things are called.
    """
    return f'{names.task} = "{names.module}.config:{names.function}"'


def _camera_m(base: Base) -> float:
    """How far to the robot's right a camera is, as y: further from a larger one, whose walking speed is higher."""
    return rounded(-max(1.0, 2.0 * base.speed_m_s))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _tuple(start: str, items: tuple[str, ...], end: str, indent: int) -> list[str]:
    """Lines of a tuple of texts: one if they fit, else one for each, as the formatter has it.

    Args:
        start: What stands before it.
        items: The texts.
        end: What stands behind it.
        indent: Spaces that are put before the lines.
    """
    inside = ", ".join(map(_text, items)) + ("," if len(items) == 1 else "")
    line = f"{start}({inside}){end}"
    if indent + len(line) <= WIDTH:
        return [line]
    return [f"{start}(", *(f"    {_text(item)}," for item in items), f"){end}"]


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _indented(lines: Iterable[str], spaces: int) -> str:
    return "\n".join(" " * spaces + line if line else "" for line in lines)
