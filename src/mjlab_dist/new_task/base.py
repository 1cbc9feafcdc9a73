"""The floating base of a robot: its height, and a walking speed for the robot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mujoco

GRAVITY_M_S2 = 9.81

TOLERATED_DEPTH_M = 0.01
"""Depth in the ground above which the start state is lifted."""

UPRIGHT = 0.8
"""Minimum cosine of the angle between the z axis of an upright body and the vertical."""

FALLEN_SHARE = 0.2
"""Ground clearance of the base of a fallen robot, as a share of the clearance at the start."""

FROUDE = 0.25
"""Froude number v^2 / (g h) of the walking speed.

Animals walk up to about 0.5 (Alexander 1984, The gaits of bipedal and quadrupedal animals).
"""


@dataclass(frozen=True, kw_only=True)
class Base:
    """The floating base of a robot."""

    joint: str
    """Name of the free joint."""
    is_upright: bool
    """Whether the z axis of the base points up at the start."""
    rise_m: float
    """Depth of the start state in the ground; 0 if it is not in the ground."""
    min_height_m: float
    """Height of the free joint below which the robot has fallen."""
    speed_m_s: float
    """Walking speed for legs of this length."""


def find_base(model: mujoco.MjModel, start: mujoco.MjData, free: int) -> Base:
    """Measure the base of a floating robot.

    Args:
        model: The MuJoCo model.
        start: The start state.
        free: The free joint.
    """
    # Depth of the start state in the ground, and height of the base when it is lifted out
    body = int(model.jnt_bodyid[free])
    ground_m = ground_height(model, start)
    depth_m = max((-c.dist for c in start.contact if 0 in model.body_weldid[model.geom_bodyid[c.geom]]), default=0.0)
    rise_m = depth_m if depth_m > TOLERATED_DEPTH_M else 0.0
    height_m = float(start.xpos[body, 2]) + rise_m - ground_m
    belly_m = min(_clearance(model, start, body), height_m)
    return Base(
        joint=model.joint(free).name,
        is_upright=bool(start.xmat[body, 8] > UPRIGHT),
        rise_m=rise_m,
        min_height_m=ground_m + belly_m + FALLEN_SHARE * (height_m - belly_m),
        speed_m_s=math.sqrt(FROUDE * GRAVITY_M_S2 * max(height_m, 0.1)),
    )


def ground_height(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Return the height of the highest plane, or 0 without one, in m.

    Args:
        model: The MuJoCo model.
        data: Its state.
    """
    import mujoco

    planes = model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)
    return float(data.geom_xpos[planes, 2].max(initial=-np.inf)) if planes.any() else 0.0


def _clearance(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """Return the height of a body's frame above the lowest point of all colliding geoms fixed to it, in m."""
    fixed = (model.body_weldid[model.geom_bodyid] == model.body_weldid[body]) & (
        model.geom_contype | model.geom_conaffinity != 0
    )
    up = data.geom_xmat[fixed, 6:]
    centre, half = model.geom_aabb[fixed, :3], model.geom_aabb[fixed, 3:]
    lowest_m = data.geom_xpos[fixed, 2] + (up * centre).sum(axis=1) - (np.abs(up) * half).sum(axis=1)
    return float(data.xpos[body, 2] - lowest_m.min()) if fixed.any() else 0.0
