"""Parts of configs that the new tasks of all robots share."""

from __future__ import annotations

from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.rounding import rounded
from mjlab_dist.authoring.new_task.source.python import text


def env_parts(observed: list[str], rewards: list[str], terminations: list[str], events: list[str]) -> list[str]:
    """Return the lines of the terms of an env."""
    return [
        "# Observations of the policy and the value function. If you add a second group named critic, the value",
        "# function uses only that group.",
        "observations={",
        '    "actor": {',
        *(f"        {line}" for line in observed),
        "    },",
        "},",
        "# Reward per control step: the sum of weight * term. The console prints the mean of each term.",
        "rewards={",
        *(f"    {line}" for line in rewards),
        "},",
        *terminations,
        "# Events: at the start of an episode, or at intervals.",
        "events={",
        *(f"    {line}" for line in events),
        "},",
    ]


def joint_observations(robot: Robot) -> list[str]:
    """Return the lines of the observations of joints and actions."""
    observed = robot.observed
    lines: list[str] = []
    if observed.are_all and observed.positions:
        lines += ["# All hinge and slide joints.", '"positions": observation(observations.JointPositions),']
    elif observed.positions:
        lines += [
            "# Joints of the robot, except hinges without limits and joints along which it moves horizontally."
            if observed.is_soft
            else "# Hinges with limits, and slide joints except those along which the robot moves horizontally.",
            '"positions": observation(observations.JointPositions, joints=_POSITIONS),',
        ]
    if observed.angles:
        lines += [
            "# Sines and cosines of the hinges without limits, which are the same after a full turn.",
            '"angles": observation(observations.JointAngles, joints=_ANGLES),',
        ]
    if observed.balls:
        lines.append("# Quaternions and angular velocities of the ball joints.")
    for i, joint in enumerate(observed.balls, start=1):
        lines += [
            f'"ball_{i}": observation(observations.joint_position, joint={text(joint)}),',
            f'"ball_{i}_velocity": observation(observations.joint_velocity, joint={text(joint)}),',
        ]
    if observed.is_soft:
        lines.append('"velocities": observation(observations.JointVelocities, joints=(*_POSITIONS, *_ANGLES)),')
    elif observed.positions or observed.angles:
        lines.append('"velocities": observation(observations.JointVelocities),')
    return [*lines, '"last_action": observation(observations.last_action),']


def action_cost(robot: Robot) -> list[str]:
    """Return the lines of the cost of large actions."""
    size = rounded(-0.05 / max(1, len(robot.joints)))
    return ["# A cost for large actions.", f'"effort": reward({size!r}, rewards.action_size),']


def call(start: str, items: list[str]) -> list[str]:
    """Return the lines of a call with one argument per line."""
    return [start, *(f"    {item}" for item in items), "),"]
