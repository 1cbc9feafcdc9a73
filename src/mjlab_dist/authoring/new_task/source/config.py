"""Text of the ``config.py`` of a new task, which the user reads and edits."""

from __future__ import annotations

import re
import textwrap

from mjlab_dist.authoring.new_task.action_blocks import Block
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.source import FUNCTIONS, MODULES, Names, indented, joined, text, tuple_lines
from mjlab_dist.authoring.new_task.source.parts import fixed_source, moving_source
from mjlab_dist.sim.names import exactly

# First lines of the docstrings of tasks, by goal
_SUMMARIES = {
    "walk": "Move forward",
    "reach": "Move the end effector to target positions",
    "balance": "Balance the last link",
    "swing-up": "Swing the last link up and balance it",
    "hold": "Move the joints to target positions",
    "none": "A task without rewards",
}


def config_source(names: Names, robot: Robot) -> str:
    """Return the text of ``config.py``."""
    body = _body_source(names, robot)
    constants = [line for name, lines in _constants(robot).items() if re.search(rf"\b{name}\b", body) for line in lines]
    return (
        f"{_imports_source(names, robot, body)}\n\n{joined([*constants, *([''] * 2 if constants else [''])])}\n{body}"
    )


def summary(robot: Robot) -> str:
    """Return a short description of the task."""
    if robot.base is None:
        return _SUMMARIES[robot.goal]
    if robot.gait is not None:
        return "Follow velocity commands"
    return {"walk": "Walk forward" if robot.base.can_fall else "Swim forward", "hold": "Stand still"}.get(
        robot.goal, _SUMMARIES[robot.goal]
    )


def _body_source(names: Names, robot: Robot) -> str:
    num_iterations = 1000 if robot.gait is not None and len(robot.gait.feet.ids) == 2 else 300
    parts = moving_source(robot.base, robot) if robot.base is not None else fixed_source(robot)
    return f'''def {names.function}() -> TrainConfig:
    """{summary(robot)}, with {names.file}."""
    return TrainConfig(
        task={text(names.task)},
        # Number of envs (copies of the robot) on all CPU cores together, and on each GPU.
        total_num_envs=256,
        gpu_num_envs=4096,
        # Each iteration is a rollout of 24 control steps in every env, and an update of the policy.
        max_iterations={num_iterations},
        env=_env(),
        # The learner, PPO. More flags: train {names.task} --help agent
        agent=PpoConfig(
            # Normalizes observations by their mean and standard deviation, so that terms need no scale.
            obs_normalization=True,
            # A larger entropy bonus leads to longer exploration.
{indented(_agent_source(robot), 12)}
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
{indented(parts, 8)}
    )


def _sim() -> SimConfig:
    return SimConfig(
{_sim_source(names, robot)}
    )
'''


def _agent_source(robot: Robot) -> list[str]:
    gait = robot.gait
    num_feet = 0 if gait is None else len(gait.feet.ids)
    entropy, std, gamma = {2: (0.001, 0.5, 0.98), 4: (0.004, 0.8, 0.97)}.get(num_feet, (0.002, 0.8, 0.97))
    lines = [
        f"entropy_coef={entropy},",
        "# Standard deviation of the actions at the start.",
        f"init_std={std},",
        "# Small rollouts, and many small mini-batches, take the least time on a CPU.",
        "num_steps_per_env=24,",
        "num_learning_epochs=3,",
        "num_mini_batches=16,",
        "# The learning rate falls to 0.",
        'schedule="linear",',
        "# Discount factor per control step.",
        f"gamma={gamma},",
    ]
    if gait is None:
        lines.append("use_clipped_value_loss=False,")
    elif gait.is_symmetric:
        lines += [
            "# Learns from every sample also with left and right exchanged, so that the robot does not limp.",
            "symmetry=SymmetryConfig(use_data_augmentation=True),",
        ]
    return lines


def _imports_source(names: Names, robot: Robot, body: str) -> str:
    # Names that the code uses
    code = joined(line for line in body.splitlines() if not line.lstrip().startswith("#"))
    imports = [
        "ActionConfig",
        "EnvConfig",
        "PpoConfig",
        "SimConfig",
        "TrainConfig",
        "OptionsConfig",
        "ActuatorConfig",
        "ContactConfig",
        "SymmetryConfig",
    ]
    imports = [name for name in (*imports, *FUNCTIONS) if re.search(rf"\b{name}\b", code)]
    modules = [name for name in MODULES if re.search(rf"(?<!\.)\b{name}\.", code)]
    own = f"from {names.module} import terms" if re.search(r"\bterms\.", code) else ""
    if own and "." not in names.module:  # a blank line precedes a package's own imports, but not those in a checkout
        own = f"\n{own}"
    # Docstring of the module, and imports
    example = next(
        (name for name in ("track_velocity", "forward", "upright", "reached") if f'"{name}": reward' in body), "effort"
    )
    return f'''"""The task {names.task}: simulation, observations, actions, rewards and terminations.

Every field is also a flag of the command line:
    train {names.task} --env.rewards.{example}.weight 2
Terms are functions and classes, so that editors can jump to them and type checkers check their parameters. For a list
of all terms, and for writing your own, see docs/task-reference.md of mjlab-dist.

The goal of this task is {robot.goal}. For a task with another goal, run new-task with --goal {"|".join(robot.goals)}.
"""

from mjlab_dist.config import (
{joined(f"    {name}," for name in sorted(imports))}
)
from mjlab_dist.mdp import {", ".join(modules)}
{own}'''.rstrip()


def _constants(robot: Robot) -> dict[str, list[str]]:
    """Return a dict from the name of each constant that terms can use as a parameter to the constant's source lines."""
    found: dict[str, list[str]] = {}
    if robot.base is not None:
        what = "The free joint of the robot's base." if robot.base.is_free else "The joint along which the robot moves."
        found["_ROOT"] = [f"# {what}", f"_ROOT = {text(robot.base.joint)}"]
    if robot.end is not None and robot.end.site is not None:
        found["_SITE"] = ["# The site of the end effector.", f"_SITE = {text(exactly(robot.end.site))}"]
    if robot.gait is not None:
        feet = tuple(map(exactly, robot.gait.feet.names))
        what = "geoms" if robot.gait.feet.kind == "geom" else "bodies"
        found["_FEET"] = [f"# The {what} of the feet.", *tuple_lines("_FEET = ", feet, "", 0)]
    found["_JOINTS"] = ["# The driven joints.", *_names("_JOINTS", robot.joints)]
    if robot.pendulum is not None:
        found["_BODY"] = ["# The last link.", f"_BODY = {text(robot.pendulum_body)}"]
        found["_HINGES"] = _names("_HINGES", robot.pendulum.hinges)
        found["_SLIDES"] = _names("_SLIDES", robot.pendulum.slides)
    observed = robot.observed
    found["_POSITIONS"] = [
        "# Joints whose positions are observed.",
        *_names("_POSITIONS", observed.positions),
    ]
    found["_ANGLES"] = ["# Hinges without limits.", *_names("_ANGLES", observed.angles)]
    return found


def _names(constant: str, names: tuple[str, ...]) -> list[str]:
    """Return the lines of a constant: regular expressions that match the names of joints."""
    return tuple_lines(f"{constant} = ", tuple(map(exactly, names)), "", 0)


def _sim_source(names: Names, robot: Robot) -> str:
    # Model, start state and motors
    model = f"{names.module}.model:robot" if robot.lacks else f"{names.module}:{names.file}"
    what = f"model.py adds the parts that {names.file} lacks." if robot.lacks else "The MJCF, a file of this package."
    lines = [f"# {what}", f"model={text(model)},"]
    if robot.keyframe is not None:
        what = "The pose that model.py adds, in which" if robot.lacks.home else "The keyframe that"
        what += " the robot stands." if robot.lacks.home and robot.stands else " episodes start from."
        what = what.replace("in which episodes start from", "from which episodes start")
        lines += [f"# {what}", f"keyframe={text(robot.keyframe)},"]
    if robot.motors:
        lines += _motors_source(robot)
    # Options that differ from the MJCF
    if robot.has_pgs or robot.integrator is not None or robot.gait is not None:
        lines += ["options=OptionsConfig("]
        if robot.timestep_s is not None:
            lines += [
                "    # A longer physics step than in the MJCF, in simulated seconds.",
                f"    timestep_s={1 / robot.control_hz:.4g} / {robot.decimation},",
            ]
        if robot.gait is not None:
            lines += [
                "    # Contacts that are fast to compute.",
                '    cone="pyramidal",',
                "    impratio=1.0,",
            ]
        if robot.has_pgs:
            lines += ["    # The MJCF uses PGS, which MuJoCo Warp does not support.", '    solver="newton",']
        if robot.integrator is not None:
            lines += [f"    # {_INTEGRATORS[robot.integrator]}", '    integrator="implicitfast",']
        lines += ["),"]
    if robot.gait is not None:
        kind = "geom" if robot.gait.feet.kind == "geom" else "subtree"
        lines += [
            "# Contacts that sensors measure.",
            f'contacts={{"feet": ContactConfig(names=_FEET, kind={text(kind)})}},',
        ]
    # Step and buffer sizes
    lines += [
        f"# Physics steps per control step; the result is {robot.control_hz:.4g} control steps per second.",
        f"decimation={robot.decimation},",
        "# Maximum numbers of constraints and of contacts per env. If a maximum is too small, training restarts with a",
        "# larger one. If it is too large, steps take longer. To find good values, run",
        f"#     mjlab-dist size-buffers {names.task}",
        f"njmax={robot.njmax},",
        f"nconmax={robot.nconmax},",
    ]
    if robot.goal != "reach":
        lines += [
            "# To save time, do not recompute poses and sensors before observing. They are then one substep old, but",
            "# this task does not observe them.",
            "forward_before_observation=False,",
        ]
    return indented(lines, 8)


_INTEGRATORS = {
    "rk4": "The MJCF uses RK4, which takes four times as long as implicitfast.",
    "euler": "The MJCF uses Euler, which is less stable with the damping of these motors.",
}


def _motors_source(robot: Robot) -> list[str]:
    # Comment above the motors
    about = (
        "The MJCF has no actuators. These motors hold target positions. Their parameters are estimates from the load "
        "of each joint: replace them with those of your motors. Armature is added where links are too light for stable "
        "motors."
    )
    if robot.preset is not None:
        others = "" if robot.preset.motors.keys() == robot.motors.keys() else " The other motors are estimates."
        about = (
            f"Motors of the {robot.preset.label}, which hold target positions. Source: {robot.preset.source}.{others}"
        )
    if any(motor.kind == "velocity" for motor in robot.motors.values()):
        about += (
            " The motors of wheels hold target velocities. Their effort limit is about the torque at which wheels slip."
        )
    about += (
        " Units of stiffness, damping, effort, velocity and armature: N m/rad, N m s/rad, N m, rad/s and kg m^2 (slide "
        "joints: N/m, N s/m, N, m/s and kg)."
    )
    # Motors
    lines = [*(f"# {line}" for line in textwrap.wrap(about, 104)), "actuators={"]
    for name, motor in robot.motors.items():
        lines += [
            f"    {text(name)}: ActuatorConfig(",
            *(f"        {line}" for line in tuple_lines("joints=", motor.joints, ",", 16)),
            f"        stiffness={motor.stiffness!r},"
            if motor.kind == "position"
            else f"        kind={text(motor.kind)},",
            f"        damping={motor.damping!r},",
            f"        effort_limit={motor.effort_limit!r},",
            *([f"        velocity_limit={motor.velocity_limit!r},"] if motor.velocity_limit is not None else []),
            *([f"        armature={motor.armature!r},"] if motor.armature is not None else []),
            "    ),",
        ]
    return [*lines, "},"]


_MEANINGS = {
    "home": "Position motors: target = position in the start state + scale * action.",
    "position": "Position motors: target = offset + scale * action.",
    "velocity": "Velocity motors: target = offset + scale * action.",
    "muscle": "Muscles: activation = offset + scale * action.",
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
        f"    # {_MEANINGS['home' if block.offset == 'home' else block.kind]}",
        *(["    # Clip actions, because larger inputs can make the physics unstable."] if block.is_clipped else []),
        f"    {text(name)}: ActionConfig(",
        *(f"        {line}" for line in tuple_lines("actuators=", block.actuators, ",", 16)),
        f"        scale={block.scale!r},",
        *([] if block.offset == 0.0 else [f"        offset={offset},"]),
        *(["        clip=(-1.0, 1.0),"] if block.is_clipped else []),
        "    ),",
    ]
