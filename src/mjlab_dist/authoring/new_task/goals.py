"""The goal of a robot's first task, and the parts of the model that the goal needs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mjlab_dist.authoring.new_task.joints import (
    GRAVITY_M_S2,
    corners_below,
    followers,
    has_weight,
    is_below,
    is_finger,
    is_hinge,
    simple_joints,
)
from mjlab_dist.errors import UserError, listed

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Goal of a task
Goal = Literal["walk", "reach", "balance", "swing-up", "hold", "none"]

# Maximum number of joints without a motor in a pendulum
MAX_PASSIVE = 3

# Minimum number of fingers of a hand; an end effector with fewer fingers is a gripper
MIN_FINGERS = 4

# If the last link of a pendulum starts above this height, the guessed goal is balance; otherwise, it is swing-up. The
# height is a share of the distance from the lowest to the highest position of the link's center of mass.
UPPER_SHARE = 0.9

# Names of sites that mark an end effector
END_NAMES = re.compile(
    r".*(ee|eef|end.?effector|grip.*|pinch|tcp|tool.*|attachment.*|grasp|finger.?tip|tip)(_site)?", re.I
)

# Distance from the tip of a finger to the middle of its pad, as a share of the finger's length
PAD_SHARE = 0.15

# Number of random poses of the arm from which the ranges of targets are computed
NUM_REACHED = 500

# Maximum difference between the position of a hinge in a random pose and in the start state
REACH_RAD = 0.7

# Maximum difference between the position of a slide joint in a random pose and in the start state
REACH_M = 0.3


@dataclass(frozen=True, kw_only=True)
class Pendulum:
    """A chain of joints whose last link is balanced or swung up."""

    # The last link
    body: int
    # Names of the slide joints of the chain
    slides: tuple[str, ...]
    # Names of the hinges of the chain
    hinges: tuple[str, ...]
    # Minimum height of the last link's center of mass
    low_m: float
    # Maximum height of the last link's center of mass
    high_m: float
    # Height of the last link's center of mass in the start state
    start_m: float
    # Whether the pendulum has a single joint, with a motor that is strong enough to hold the pendulum in any pose
    can_hold: bool


@dataclass(frozen=True, kw_only=True)
class EndEffector:
    """The point of an arm that reaches for targets."""

    # The body that the point is fixed to: the body of the site or, without a site, the last link of the arm
    body: int
    # Name of the site at this point; None if the MJCF has none, and none was added
    site: str | None
    # Position of the point in the frame of the body, in m
    pos: tuple[float, float, float]
    # Ranges of x, y and z of targets in the world frame, in m
    box: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


def possible_goals(
    is_moving: bool, pendulum: Pendulum | None, end: EndEffector | None, *, has_joints: bool, has_balls: bool
) -> tuple[Goal, ...]:
    """Return the goals that a robot can have, the most suitable ones first."""
    goals: list[Goal] = []
    if is_moving and has_joints:
        goals.append("walk")
    elif pendulum is not None:
        goals.extend(("balance", "swing-up"))
    if not is_moving and end is not None:
        goals.append("reach")
    return (*goals, "none") if has_balls else (*goals, "hold", "none")


def choose_goal(wish: Goal | None, goals: Sequence[Goal], pendulum: Pendulum | None) -> Goal:
    """Return the goal of a task: the user's wish, or a guess."""
    if wish is not None and wish not in goals:
        raise UserError(f"--goal {wish}: does not suit this robot; choose {listed(goals, 'or')}")
    if wish is not None:
        return wish
    if "balance" in goals and pendulum is not None and not pendulum.can_hold:
        share = (pendulum.start_m - pendulum.low_m) / (pendulum.high_m - pendulum.low_m)
        return "balance" if share > UPPER_SHARE else "swing-up"
    return next(goal for goal in goals if goal not in {"balance", "swing-up"})


def find_pendulum(model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int]) -> Pendulum | None:
    """Return the description of a robot that is a pendulum; None for other robots.

    A pendulum is a single driven hinge, or a chain of up to three hinges and at most one slide joint. Such a chain must
    have at least as many passive joints as driven joints. Passive joints have neither a motor nor a spring.
    """
    if not has_weight(model):
        return None
    # Joints of the chain
    coupled = followers(model)
    trees = {int(model.body_rootid[model.jnt_bodyid[j]]) for j in joints}
    chain = [j for j in simple_joints(model) if int(model.body_rootid[model.jnt_bodyid[j]]) in trees]
    hinges = [j for j in chain if is_hinge(model, j)]
    slides = [j for j in chain if not is_hinge(model, j)]
    passive = [j for j in chain if j not in joints and j not in coupled and model.jnt_stiffness[j] == 0.0]
    # Check the shape: a single joint, or a small chain with enough passive joints
    is_chain = all(
        is_below(model, int(model.jnt_bodyid[b]), int(model.jnt_bodyid[a])) for a, b in itertools.pairwise(chain)
    )
    is_small = len(trees) == 1 and len(slides) <= 1 and 1 <= len(hinges) <= MAX_PASSIVE
    is_single = len(chain) == 1
    if not is_chain or not is_small or not (is_single or len(joints) <= len(passive) <= MAX_PASSIVE):
        return None
    # Heights that the pendulum can reach
    body = max(int(model.jnt_bodyid[j]) for j in hinges)
    heights = _heights(model, start, hinges, body)
    if np.ptp(heights) < 1e-3:
        return None
    return Pendulum(
        body=body,
        slides=tuple(model.joint(j).name for j in slides),
        hinges=tuple(model.joint(j).name for j in hinges),
        low_m=float(heights.min()),
        high_m=float(heights.max()),
        start_m=float(start.xipos[body, 2]),
        can_hold=is_single and _torque(model, joints[0]) > _weight_torque(model, start, joints[0]),
    )


def find_end(model: mujoco.MjModel, start: mujoco.MjData, joints: Sequence[int]) -> EndEffector | None:
    """Return the end effector of an arm. An arm is a chain of two or more driven joints, possibly with a gripper."""
    # The arm: the driven joints that move the links at all ends of the robot, except for sliding fingers
    bodies = {int(model.jnt_bodyid[j]) for j in (*joints, *followers(model))}
    ends = [b for b in bodies if not any(other != b and is_below(model, other, b) for other in bodies)]
    moving_all = [j for j in joints if all(is_below(model, end, int(model.jnt_bodyid[j])) for end in ends)]
    arm = [j for j in moving_all if not is_finger(model, j)]
    if len(arm) < 2 or len(ends) >= MIN_FINGERS:
        return None
    body = int(model.jnt_bodyid[arm[-1]])
    # The end effector: a site of the MJCF, the point between the fingertips, or the tip of the last link
    sites = [s for s in range(model.nsite) if is_below(model, int(model.site_bodyid[s]), body)]
    named = [s for s in sites if END_NAMES.fullmatch(model.site(s).name)]
    if named:
        body, point, site = int(model.site_bodyid[named[0]]), start.site_xpos[named[0]], model.site(named[0]).name
    else:
        site = None
        tip = 2.0 * start.subtree_com[body] - start.xanchor[arm[-1]]
        point = _between(model, start, ends) if len(ends) > 1 else tip
    local = start.xmat[body].reshape(3, 3).T @ (point - start.xpos[body])
    points = _reached(model, start, arm, body, local)
    low, high = np.quantile(points, [0.05, 0.95], axis=0)
    box = [(round(float(a), 2), round(float(b), 2)) for a, b in zip(low, high, strict=True)]
    return EndEffector(
        body=body, site=site, pos=(float(local[0]), float(local[1]), float(local[2])), box=(box[0], box[1], box[2])
    )


def _between(model: mujoco.MjModel, start: mujoco.MjData, fingers: Sequence[int]) -> NDArray[np.float64]:
    """Return the point between the tips of fingers, with which a gripper holds objects, (3,)."""
    hand = fingers[0]
    while not all(is_below(model, finger, hand) for finger in fingers):
        hand = int(model.body_parentid[hand])
    middle = np.mean([start.subtree_com[finger] for finger in fingers], axis=0)
    forward = middle - start.xpos[hand]
    forward /= max(float(np.linalg.norm(forward)), 1e-6)
    along = [(corners_below(model, start, finger) - middle) @ forward for finger in fingers]
    tips = [float(one.max() - PAD_SHARE * np.ptp(one)) for one in along if len(one)]
    return middle + forward * (np.mean(tips) if tips else 0.0)


def _heights(model: mujoco.MjModel, start: mujoco.MjData, hinges: Sequence[int], body: int) -> NDArray[np.float64]:
    """Return the heights of a body's center of mass in m, for a grid of hinge positions."""
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[:] = start.qpos
    limits = [map(float, model.jnt_range[j]) if model.jnt_limited[j] else (-np.pi, np.pi) for j in hinges]
    home = [float(start.qpos[model.jnt_qposadr[j]]) for j in hinges]
    grids = [[*np.linspace(low, high, 9), at] for (low, high), at in zip(limits, home, strict=True)]
    heights: list[float] = []
    for position in itertools.product(*grids):
        data.qpos[model.jnt_qposadr[list(hinges)]] = position
        mujoco.mj_kinematics(model, data)
        heights.append(float(data.xipos[body, 2]))
    return np.array(heights)


def _reached(
    model: mujoco.MjModel, start: mujoco.MjData, arm: Sequence[int], body: int, local: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the positions of a point of a body in random poses near the start state, (NUM_REACHED, 3)."""
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[:] = start.qpos
    columns = model.jnt_qposadr[list(arm)]
    limited = model.jnt_limited[list(arm)].astype(bool)
    width = np.array([REACH_RAD if is_hinge(model, j) else REACH_M for j in arm])
    low, high = start.qpos[columns] - width, start.qpos[columns] + width
    low = np.where(limited, np.maximum(model.jnt_range[list(arm), 0], low), low)
    high = np.where(limited, np.minimum(model.jnt_range[list(arm), 1], high), high)
    rng = np.random.default_rng(0)
    points: list[NDArray[np.float64]] = []
    for _ in range(NUM_REACHED):
        data.qpos[columns] = rng.uniform(low, high)
        mujoco.mj_kinematics(model, data)
        points.append(data.xpos[body] + data.xmat[body].reshape(3, 3) @ local)
    return np.array(points)


def _torque(model: mujoco.MjModel, joint: int) -> float:
    """Return the maximum torque of the actuators of a joint in N m; infinity without limits."""
    total = 0.0
    for i in range(model.nu):
        if model.actuator_trnid[i, 0] != joint:
            continue
        gear = abs(float(model.actuator_gear[i, 0]))
        by_force = float(model.actuator_forcerange[i, 1]) if model.actuator_forcelimited[i] else np.inf
        by_input = np.inf
        if model.actuator_ctrllimited[i] and not model.actuator_biastype[i]:
            by_input = float(model.actuator_ctrlrange[i, 1] * model.actuator_gainprm[i, 0])
        total += gear * min(by_force, by_input)
    return total if model.nu else np.inf


def _weight_torque(model: mujoco.MjModel, start: mujoco.MjData, joint: int) -> float:
    body = int(model.jnt_bodyid[joint])
    lever_m = float(np.linalg.norm(start.subtree_com[body] - start.xanchor[joint]))
    return GRAVITY_M_S2 * float(model.body_subtreemass[body]) * lever_m
