"""Commands, observations, rewards, terminations and events of a new task for a robot that is fixed to the world."""

from __future__ import annotations

import math

from mjlab_dist.authoring.new_task.goals import EndEffector, Pendulum
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.rounding import rounded
from mjlab_dist.authoring.new_task.source.parts import action_cost, call, env_parts, joint_observations
from mjlab_dist.authoring.new_task.source.python import text

# Minimum height of a balanced pendulum, as a share of its range of heights; below this height, it has fallen
FALLEN_SHARE = 0.8


def fixed_source(robot: Robot) -> list[str]:
    """Return the source lines of the env's commands, observations, rewards, terminations and events."""
    # Terms of the goal
    observed, rewards, terminations, metrics = [], [], [], []
    commands: list[str] = []
    start = '"joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.1, 0.1)),'
    if robot.end is not None:
        commands = _reach_command(robot.end, robot.lacks.target)
        observed = [
            "# Vector from the end effector to the target.",
            '"to_target": observation(terms.ToTarget, command="target", site=_SITE),',
        ]
        rewards = _reach_rewards(robot.end)
        metrics = [
            "# Quantities to log: the distance to the target in cm, in the last step of an episode.",
            "metrics={",
            '    "distance_cm": metric(terms.DistanceCm, "last", command="target", site=_SITE),',
            "},",
        ]
    elif robot.pendulum is not None:
        rewards, terminations = _pendulum_rewards(robot.pendulum), _pendulum_terminations(robot, robot.pendulum)
        width = 3.14 if robot.goal == "swing-up" else 0.1
        start = f'"joints": event(events.DrawJoints, joints=_HINGES, position=({-width!r}, {width!r})),'
    elif robot.goal == "hold":
        commands = _joint_command()
        observed = [
            "# Distances of the joints to their targets.",
            f'"to_target": observation(terms.ToTarget, command="target", joints=_JOINTS{_turning(robot)}),',
        ]
        rewards = _joint_rewards(robot)
        start = '"joints": event(events.DrawJoints, joints=_JOINTS, position=(-0.5, 0.5)),'
    else:
        rewards = ["# Add your own rewards here, such as terms.your_function."]
    # Join the lines of all terms
    where = "angles" if robot.goal == "swing-up" else "positions near the start state, within their limits"
    what = "hinges" if robot.goal == "swing-up" else "joints"
    return [
        *commands,
        *env_parts(
            observed=[*observed, *joint_observations(robot)],
            rewards=[*rewards, *action_cost(robot)],
            terminations=[*(terminations or _NO_TERMINATIONS), *metrics],
            events=[f"# The {what} begin at random {where}.", start],
        ),
    ]


_NO_TERMINATIONS = [
    "# Conditions that end an episode before its time limit: none.",
    "terminations={",
    '    # "broken": termination(terms.your_function),  # import termination from mjlab_dist.config',
    "},",
]


def _turning(robot: Robot) -> str:
    """Return the argument that names the hinges without limits, whose distances wrap around; empty if none exist."""
    return ", endless=_ANGLES" if set(robot.observed.angles) & set(robot.joints) else ""


def _joint_command() -> list[str]:
    return [
        "# Commands: target positions of the joints, resampled every few seconds. See terms.py.",
        "commands={",
        "    # Targets differ from the start state by at most reach, in rad or m, and are within the joint limits.",
        '    "target": term(terms.JointTargets, joints=_JOINTS, reach=1.0, resample_s=(2.0, 4.0)),',
        "},",
    ]


def _joint_rewards(robot: Robot) -> list[str]:
    turning = _turning(robot)
    return [
        "# A cost for the distance of joints from their targets. It has a gradient even far away from the targets.",
        "# Distances are divided by half the range of the targets, so that hinges and fingers count alike.",
        f'"distance": reward(-0.3, terms.Distance, command="target", joints=_JOINTS{turning}),',
        "# 1 if all joints are at their targets.",
        f'"reached": reward(1.0, terms.Reached, command="target", joints=_JOINTS{turning}, std=0.3),',
    ]


def _reach_command(end: EndEffector, marker: str) -> list[str]:
    x, y, z = end.box
    items = [
        "commands.Pose,",
        f"x_m={x!r},",
        f"y_m={y!r},",
        f"z_m={z!r},",
        "resample_s=(3.0, 5.0),",
        "# The body that shows the target in videos.",
        f"marker={text(marker)},",
    ]
    return [
        "# Commands: positions of the target, resampled every few seconds. The ranges x_m, y_m and z_m contain most",
        "# points that the end effector reaches if each joint moves by up to 0.7 rad (slide joints: 0.3 m).",
        "commands={",
        *(f"    {line}" for line in call('"target": term(', items)),
        "},",
    ]


def _reach_rewards(end: EndEffector) -> list[str]:
    half_m = max(math.dist(*zip(*end.box, strict=True)) / 2, 0.02)
    wide, narrow = rounded(half_m), rounded(half_m / 5)
    return [
        "# Both rewards are 1 at the target and 0.37 at a distance of std_m. The smaller std_m rewards precision.",
        f'"near": reward(0.5, terms.AtTarget, command="target", site=_SITE, std_m={wide!r}),',
        f'"reached": reward(1.0, terms.AtTarget, command="target", site=_SITE, std_m={narrow!r}),',
    ]


def _pendulum_rewards(pendulum: Pendulum) -> list[str]:
    low, high = rounded(pendulum.low_m), rounded(pendulum.high_m)
    lines = [
        "# 0 if the center of mass of the last link is at its lowest height, and 1 if it is at its greatest height.",
        f'"upright": reward(1.0, terms.Height, body=_BODY, low_m={low!r}, high_m={high!r}),',
    ]
    if pendulum.slides:
        lines += [
            "# A cost for the distance from the start position, in m.",
            '"centered": reward(-0.1, rewards.JointDeviation, joints=_SLIDES),',
        ]
    return lines


def _pendulum_terminations(robot: Robot, pendulum: Pendulum) -> list[str]:
    if robot.goal != "balance":
        return []
    fallen_m = pendulum.low_m + FALLEN_SHARE * (pendulum.high_m - pendulum.low_m)
    return [
        "# Conditions that end an episode before its time limit.",
        "terminations={",
        "    # The center of mass of the last link is lower than this height.",
        f'    "fallen": termination(terms.Below, body=_BODY, min_m={rounded(fallen_m)!r}),',
        "},",
    ]
