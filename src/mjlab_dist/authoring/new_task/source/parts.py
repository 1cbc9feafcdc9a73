"""Parts of the config of a new task: commands, observations, rewards, terminations and events.

They differ between robots that are fixed to the world and robots that move.
"""

from __future__ import annotations

import math

from mjlab_dist.authoring.new_task.gaits import Gait
from mjlab_dist.authoring.new_task.goals import EndEffector, Pendulum
from mjlab_dist.authoring.new_task.joints import Base
from mjlab_dist.authoring.new_task.robot import Robot
from mjlab_dist.authoring.new_task.source import rounded, rounded_up, text
from mjlab_dist.sim.names import exactly

# Minimum height of a balanced pendulum, as a share of its range of heights; below this height, it has fallen
FALLEN_SHARE = 0.8

_NO_TERMINATIONS = [
    "# Conditions that end an episode before its time limit: none.",
    "terminations={",
    '    # "broken": termination(terms.your_function),  # import termination from mjlab_dist.config',
    "},",
]


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


def moving_source(base: Base, robot: Robot) -> list[str]:
    """Return the source lines of the env's observations, rewards, terminations and events."""
    observed, rewards, lines = _base_observations(base), _rewards(base, robot), list[str]()
    if robot.gait is not None:
        observed, rewards, lines = observed + _GAIT_OBSERVATIONS, _gait_rewards(robot.gait), _gait_source(robot.gait)
    terms = env_parts(
        observed=observed + joint_observations(robot),
        rewards=rewards,
        terminations=_terminations(base),
        events=_events(base, robot),
    )
    return lines + terms


_GAIT_OBSERVATIONS = [
    "# The velocity to follow, and the clock of the gait.",
    '"command": observation(observations.command, name="velocity"),',
    '"gait": observation(observations.gait_clock, sensor="gait"),',
]


def _gait_source(gait: Gait) -> list[str]:
    kind = [] if gait.feet.kind == "geom" else [f"        kind={text(gait.feet.kind)},"]
    what, resample_s = "The feet swing in turn.", (5.0, 10.0)
    if len(gait.feet.ids) == 4:
        what, resample_s = "Feet with the same offset swing together: this is a trot.", (2.0, 5.0)
    return [
        "# Commands: how the robot should move. They are resampled every few seconds.",
        "commands={",
        '    "velocity": term(',
        "        commands.Velocity,",
        f"        forward_m_s={gait.forward_m_s!r},",
        f"        left_m_s={gait.left_m_s!r},",
        f"        yaw_rad_s={gait.yaw_rad_s!r},",
        f"        resample_s={resample_s!r},",
        "        # Shares of the commands to stand still, and to keep a heading instead of a yaw rate.",
        "        standing_share=0.1,",
        "        heading_share=0.5,",
        "        joint=_ROOT,",
        "    ),",
        "},",
        "# Sensors: measured once per control step, for observations and rewards.",
        "sensors={",
        f"    # A clock that tells when to lift each foot. {what}",
        '    "gait": term(',
        "        sensors.Gait,",
        "        feet=_FEET,",
        *kind,
        f"        offsets={gait.offsets!r},",
        f"        frequency_hz={gait.frequency_hz:.4g},",
        '        command="velocity",',
        "    ),",
        '    "feet": term(sensors.Contact, contacts="feet"),',
        "},",
        "# Weights of rewards are per second.",
        'reward_scale="dt",',
    ]


def _gait_rewards(gait: Gait) -> list[str]:
    on_two = len(gait.feet.ids) == 2
    frame, std, rate = ("heading", 0.8, -0.02) if on_two else ("linear", 0.3, -0.01)
    lines = [
        "# 1 if the robot moves as the command says, forward and to the left, and turns as it says.",
        f'"track_velocity": reward(3.0, rewards.track_{frame}_velocity, command="velocity", joint=_ROOT),',
        f'"track_yaw_rate": reward(1.5, rewards.track_yaw_rate, command="velocity", std_rad_s={std}, joint=_ROOT),',
        "# 1 in every step in which the episode is not terminated.",
        '"alive": reward(1.0, rewards.alive),',
        "# The share of feet that swing or stand as the clock says, and how closely they follow swings of this height.",
        '"gait": reward(0.5, rewards.scheduled_contacts, gait="gait", contacts="feet"),',
        f'"foot_lift": reward(1.0, rewards.FootLift, gait="gait", height_m={gait.lift_m!r}),',
        "# Costs for a body that is not level, and that moves up, down or sideways.",
        '"tilt": reward(-5.0, rewards.tilt, joint=_ROOT),',
        '"tilt_rate": reward(-0.05, rewards.tilt_rate, joint=_ROOT),',
        '"vertical_velocity": reward(-1.0, rewards.vertical_velocity, joint=_ROOT),',
        "# Costs for actions that change fast, and for joints away from the start state.",
        f'"action_rate": reward({rate}, rewards.action_rate),',
        '"posture": reward(-0.05, rewards.JointDeviation, joints=_JOINTS),',
    ]
    if on_two:
        lines += [
            "# A cost of 1 for a fall: the weight is multiplied by the length of a control step.",
            '"fall": reward(-50.0, rewards.terminated),',
        ]
    return lines


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
