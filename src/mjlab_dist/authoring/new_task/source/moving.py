"""Observations, rewards, terminations and events of a new task for a robot that moves."""

from __future__ import annotations

from mjlab_dist.authoring.new_task.base import Base
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.rounding import rounded, rounded_up
from mjlab_dist.authoring.new_task.source.parts import action_cost, call, env_parts, joint_observations
from mjlab_dist.authoring.new_task.source.python import text
from mjlab_dist.sim.names import exactly


def moving_source(base: Base, robot: Robot) -> list[str]:
    """Return the source lines of the env's observations, rewards, terminations and events."""
    return env_parts(
        observed=[*_base_observations(base), *joint_observations(robot)],
        rewards=_rewards(base, robot),
        terminations=_terminations(base),
        events=_events(base, robot),
    )


def _base_observations(base: Base) -> list[str]:
    if not base.is_free:
        return []
    return [
        f"# Direction of gravity in the robot's frame, velocities of the robot{', and its height' * base.can_fall}.",
        '"gravity": observation(observations.projected_gravity, joint=_ROOT),',
        '"velocity": observation(observations.base_linear_velocity, joint=_ROOT),',
        '"turning": observation(observations.base_angular_velocity, joint=_ROOT),',
        *(['"height": observation(observations.base_height, joint=_ROOT),'] if base.can_fall else []),
    ]


def _rewards(base: Base, robot: Robot) -> list[str]:
    lines: list[str] = []
    if robot.goal == "walk":
        speed = rounded(base.speed_m_s)
        lines += [
            f"# 1 if the robot moves forward at {speed!r} m/s; see terms.py. "
            "The speed is estimated from the robot's size.",
            f'"forward": reward(1.0, terms.forward_speed, max_m_s={speed!r}, joint=_ROOT),',
        ]
    if robot.goal == "hold":
        lines += ["# A cost for the speed in m/s.", '"drift": reward(-1.0, terms.drift, joint=_ROOT),']
    if robot.goal == "hold" and robot.joints:
        lines += [
            "# A cost for the distance of the joints from the start state.",
            '"pose": reward(-0.1, rewards.JointDeviation, joints=_JOINTS),',
        ]
    if robot.goal == "none":
        lines += ["# Add your own rewards here, such as terms.your_function."]
    if base.can_fall:
        lines += [
            "# 1 in every step in which the episode is not terminated.",
            '"alive": reward(0.5, rewards.alive),',
        ]
    return [*lines, *action_cost(robot)]


def _terminations(base: Base) -> list[str]:
    lines: list[str] = []
    if base.can_fall and base.is_free and base.is_upright:
        lines += [
            "# The base is tilted by more than this angle.",
            '"tilted": termination(terminations.tilted, max_rad=1.0, joint=_ROOT),',
        ]
    if base.can_fall and base.is_free and base.min_height_m is not None:
        lines += [
            "# The base is lower than this height.",
            f'"fallen": termination(terminations.too_low, min_m={rounded(base.min_height_m)!r}, joint=_ROOT),',
        ]
    if base.can_fall and not base.is_free:
        for i, joint in enumerate(base.tilt_joints, start=1):
            name = "tilted" if len(base.tilt_joints) == 1 else f"tilted_{i}"
            found = f"terminations.joint_out_of_range, joint={text(joint)}, low=-1.0, high=1.0"
            lines += ["# The base is tilted by more than this angle.", f'"{name}": termination({found}),']
    if base.can_fall and base.height_joint is not None and base.min_height_m is not None:
        low = rounded(base.min_height_m)
        found = f"terminations.joint_out_of_range, joint={text(base.height_joint)}, low={low!r}"
        lines += ["# The vertical joint of the base is below this position.", f'"fallen": termination({found}),']
    if not lines:
        return ["# The robot cannot fall: only the time limit ends an episode."]
    head = "# Conditions that end an episode before its time limit."
    return [head, "terminations={", *(f"    {line}" for line in lines), "},"]


def _events(base: Base, robot: Robot) -> list[str]:
    # The base at the start of an episode
    rise = f"({rounded_up(base.rise_m)!r}, {rounded_up(base.rise_m)!r})"
    lifts = "# Lifts the robot by this height in m, because it penetrates the ground in the MJCF's start state."
    lines: list[str] = []
    if base.is_free and base.rise_m:
        items = [lifts, f"z_m={rise},", "yaw_rad=(-3.14, 3.14),", "joint=_ROOT,"]
        lines += ["# The robot starts with a random heading.", *call('"start": event(', ["events.DrawRoot,", *items])]
    elif base.is_free:
        lines += [
            "# The robot starts with a random heading.",
            '"start": event(events.DrawRoot, yaw_rad=(-3.14, 3.14), joint=_ROOT),',
        ]
    elif base.rise_m and base.height_joint is not None:
        joints = f"({text(exactly(base.height_joint))},)"
        lines += [lifts, f'"start": event(events.DrawJoints, joints={joints}, position={rise}),']
    # The joints at the start of an episode
    if robot.joints:
        which = "" if base.is_free and not robot.observed.is_soft else "joints=_JOINTS, "
        lines += [
            "# The joints begin at random positions near the start state, within their limits.",
            f'"joints": event(events.DrawJoints, {which}position=(-0.1, 0.1)),',
        ]
    # Pushes
    if base.is_free and base.can_fall:
        lines += [
            "# Pushes every 5 to 10 seconds make the policy robust; uncomment to enable them:",
            '# "push": event(events.Push, linear_m_s=(-0.5, 0.5), joint=_ROOT).every(5.0, 10.0),',
        ]
    return lines
