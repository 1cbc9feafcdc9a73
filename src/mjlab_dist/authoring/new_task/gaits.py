"""The gait of a robot that learns to walk on two or four legs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mjlab_dist.authoring.new_task.joints import (
    GRAVITY_M_S2,
    Base,
    actuated_joint,
    ball_joints,
    box_corners,
    find_legs,
    is_below,
    is_endless,
    simple_joints,
)
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco

# Strides per second, times the square root of (height of the base above the feet / gravity)
FREQUENCY = 0.4


class Style(NamedTuple):
    """Numbers for the gait of all robots with the same number of legs."""

    # Minimum number of driven joints of a leg: with them, it can place its foot anywhere, and on two legs also level
    min_joints: int
    # Height to which feet lift, as a share of the height of the base above them
    lift: float
    # Maximum commanded velocities forward, backward and sideways, divided by the walking speed of `Base`
    forward: float
    backward: float
    left: float
    # Maximum commanded yaw rate
    yaw_rad_s: float
    # Maximum torque that an action of 1 adds to a position motor, divided by the robot's weight times height. With
    # more, noise overwhelms stiff motors, and the robot learns to buzz along instead of lifting its feet.
    torque: float


# By number of legs
STYLES = {
    2: Style(min_joints=5, lift=0.11, forward=0.7, backward=0.2, left=0.2, yaw_rad_s=0.5, torque=0.15),
    4: Style(min_joints=3, lift=0.25, forward=1.2, backward=1.2, left=0.6, yaw_rad_s=1.0, torque=0.4),
}


class Feet(NamedTuple):
    """Feet: the geoms that touch the ground on four legs, or the last links of two legs."""

    kind: Literal["geom", "body"]
    ids: tuple[int, ...]
    # Driven joints of the legs
    joints: tuple[int, ...]
    # Names, in the order of the model
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gait:
    """A trot on four legs, or a walk on two."""

    feet: Feet
    # Fraction of a period by which each foot is ahead
    offsets: tuple[float, ...]
    # Periods per second
    frequency_hz: float
    # Height to which it lifts its feet
    lift_m: float
    # Ranges of the velocities that it is told to follow
    forward_m_s: tuple[float, float]
    left_m_s: tuple[float, float]
    yaw_rad_s: tuple[float, float]
    # Maximum torque in N m that an action of 1 adds to a position motor
    action_torque: float
    # Whether the robot is its own mirror image, with left and right exchanged, and the images of its actions are known
    is_symmetric: bool


def find_feet(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int], joints: Sequence[int]) -> Feet | None:
    """Return the feet of a robot with two or four legs; None for other robots.

    Each leg must have joints of its own that can place its foot anywhere.
    """
    legs = find_legs(model, start, int(model.jnt_bodyid[root[0]]), joints) if root else []
    own = [joint for leg in legs for joint in leg.joints]
    if len(legs) not in STYLES or len(set(own)) < len(own) or any(is_endless(model, joint) for joint in own):
        return None
    if min(len(leg.joints) for leg in legs) < STYLES[len(legs)].min_joints:
        return None
    if len(legs) == 2:
        return Feet("body", tuple(sorted(leg.body for leg in legs)), tuple(own))
    # On each leg, the lowest geom of the last link
    collides = (model.geom_contype | model.geom_conaffinity) != 0
    lowest_m = box_corners(model, start, np.ones(model.ngeom, bool))[:, 2].reshape(model.ngeom, -1).min(axis=1)
    feet: list[int] = []
    for leg in legs:
        geoms = [g for g in np.flatnonzero(collides).tolist() if is_below(model, int(model.geom_bodyid[g]), leg.body)]
        feet.append(min(geoms, key=lowest_m.__getitem__))
    return Feet("geom", tuple(sorted(feet)), tuple(own))


def find_gait(model: mujoco.MjModel, start: mujoco.MjData, base: Base, feet: Feet, control_hz: float) -> Gait:
    """Return the gait of a robot."""
    from mjlab_dist.mdp.mirror import in_frame_of, joint_images, place_images  # imports torch

    body = int(model.joint(base.joint).bodyid[0])
    data = in_frame_of(model, start.qpos, body)
    at = np.array([getattr(data, feet.kind)(name).xpos for name in feet.names])
    is_front, is_left = (at[:, :2] > np.median(at[:, :2], axis=0)).T
    is_symmetric = all(actuated_joint(model, i) is not None for i in range(model.nu)) and not ball_joints(model)
    try:
        joint_images(model, data, simple_joints(model))
        place_images(at)
    except UserError:
        is_symmetric = False
    # Half a period is a whole number of control steps, so that left and right swing for the same time
    height_m = -float(at[:, 2].mean())
    half_steps = round(control_hz / (2.0 * FREQUENCY * math.sqrt(GRAVITY_M_S2 / height_m)))
    style = STYLES[len(feet.ids)]
    forward, backward, left = (round(one * base.speed_m_s, 1) for one in (style.forward, style.backward, style.left))
    offsets = is_front != is_left if len(feet.ids) == 4 else ~is_left
    return Gait(
        feet=feet,
        offsets=tuple(0.5 * float(later) for later in offsets),
        frequency_hz=control_hz / (2.0 * half_steps),
        lift_m=round(style.lift * height_m, 2),
        forward_m_s=(-backward, forward),
        left_m_s=(-left, left),
        yaw_rad_s=(-style.yaw_rad_s, style.yaw_rad_s),
        action_torque=style.torque * GRAVITY_M_S2 * float(model.body_subtreemass[body]) * height_m,
        is_symmetric=is_symmetric,
    )
