"""Summary of a new task: what was found in the MJCF, what was guessed, and which flags to try first."""

from __future__ import annotations

from mjlab_dist.authoring.new_task.lacks import Lacks
from mjlab_dist.authoring.new_task.presets import matched_joints
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.config import TrainConfig
from mjlab_dist.wording import listed


def found(robot: Robot) -> str:
    """Return what the MJCF contains, in one line."""
    kinds = dict.fromkeys(block.kind for block in robot.blocks.values())
    base = "a fixed base"
    if robot.base is not None:
        kind = "a floating base" if robot.base.is_free else "a base that moves in a plane"
        base = f"{kind} (joint {robot.base.joint})"
    parts = [
        base,
        _counted(len(robot.joints), "driven joint") if robot.joints else "no driven joints",
        _actuators(robot, listed(kinds)),
        "no keyframe" if robot.keyframe is None or robot.lacks.home else f"the keyframe {robot.keyframe}",
    ]
    return listed(parts)


def guessed(robot: Robot) -> list[str]:
    """Return the guesses in the config, one per line, each with the place to change it."""
    others = " or ".join(f"--goal {goal}" for goal in robot.goals if goal != robot.goal)
    lines = [f"its goal is {robot.goal}" + (f" (or: {others})" if others else "")]
    lines += _several(robot)
    if robot.base is not None and robot.goal == "walk":
        lines.append(f"it can move at up to {robot.base.speed_m_s:.2g} m/s (rewards)")
    if robot.motors and (robot.preset is None or robot.preset.motors.keys() != robot.motors.keys()):
        lines.append("its motors have gains and torques that suit the inertia and weight on each joint (sim.actuators)")
    if "wheels" in robot.motors:
        wheels = matched_joints(robot.motors["wheels"], robot.joints)
        lines.append(f"its wheels are {listed(wheels)}, and actions set their velocities (actions)")
    if robot.stands is not None:
        falls = "" if robot.stands else "; it falls in this pose"
        lines.append(f"it starts on bent legs, in a pose that was found by simulation{falls}")
    elif robot.keyframe is None:
        lines.append("it starts in the reference positions of its joints (sim.keyframe)")
    if "hold" not in robot.goals:
        lines.append(f"no goal suits the ball joint {listed(robot.observed.balls)}: add a reward for it (rewards)")
    lines += [f"actions do not move the joint {joint}, because {reason}" for joint, reason in robot.jams.items()]
    return [*lines, *_changes(robot.lacks)]


def first_flags(config: TrainConfig) -> list[str]:
    """Return the three flags to try first, with the values of the config.

    The flags set a number in the first (most important) reward, the scale of the actions, and the stiffness of added
    motors. Without added motors, the third flag sets the weight of the last reward.
    """
    env = config.env
    flags: dict[str, object] = {}
    for name, term in list(env.rewards.items())[:1]:
        numbers = {f"params.{key}": value for key, value in term.params.items() if isinstance(value, float)}
        key, value = next(iter(numbers.items()), ("weight", term.weight))
        flags[f"rewards.{name}.{key}"] = value
    for name, block in list(env.actions.items())[:1]:
        flags[f"actions.{name}.scale"] = block.scale
    for name, motor in list(env.sim.actuators.items())[:1]:
        gain = "stiffness" if motor.kind == "position" else "damping"
        flags[f"sim.actuators.{name}.{gain}"] = getattr(motor, gain)
    if not env.sim.actuators:
        for name, term in list(env.rewards.items())[-1:]:
            flags[f"rewards.{name}.weight"] = term.weight
    return [
        f"--env.{path.replace('_', '-')} {value}" for path, value in flags.items() if isinstance(value, float | int)
    ]


def _several(robot: Robot) -> list[str]:
    """Return the guesses about which robots and objects are driven, one per line."""
    lines: list[str] = []
    if len(robot.trees.driven) > 1:
        whose = "" if robot.base is None else f"; the goal is for the robot whose base has the joint {robot.base.joint}"
        lines.append(f"one policy drives {listed(robot.trees.driven)}{whose} (actions)")
    if robot.trees.idle:
        lines.append(f"the policy drives {listed(robot.trees.driven)}, and not {listed(robot.trees.idle)} (actions)")
    return lines


def _changes(lacks: Lacks) -> list[str]:
    """Return what model.py changes and adds, one change per line."""
    lines: list[str] = []
    lines += [
        f"{one} and {other} touch, so contacts between them are ignored (model.py)" for one, other in lacks.touching
    ]
    if lacks.mocap_welds:
        lines.append("its motors, instead of its mocap body, move it (model.py)")
    if lacks.weightless:
        lines.append("gravity is compensated, because the robot sags with torque motors (model.py)")
    added = [
        text
        for text, is_added in (
            ("a ground", bool(lacks.ground)),
            ("a floor for videos", bool(lacks.backdrop)),
            ("a camera", bool(lacks.camera)),
            ("a light", bool(lacks.light)),
            ("a site at its end effector", lacks.end_site is not None),
            ("a body that shows the target", bool(lacks.target)),
            (f"names for {_counted(len(lacks.joint_names), 'joint')}", bool(lacks.joint_names)),
            (f"names for {_counted(len(lacks.actuator_names), 'actuator')}", bool(lacks.actuator_names)),
        )
        if is_added
    ]
    if added:
        lines.append(f"it needs {listed(added)} (model.py)")
    return lines


def _actuators(robot: Robot, kinds: str) -> str:
    if robot.preset is not None:
        return f"the published motors of the {robot.preset.label}"
    return "no actuators" if robot.motors else f"actuators ({kinds})"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
