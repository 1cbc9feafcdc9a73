"""The base of a robot that moves: its joints, its height, and a walking speed for the robot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.joints import is_hinge
from mjlab_dist.authoring.new_task.legs import corners_below

if TYPE_CHECKING:
    import mujoco

GRAVITY_M_S2 = 9.81

# Maximum penetration of the ground at the start. If a robot is deeper in the ground, it is lifted.
TOLERATED_DEPTH_M = 0.01

# Minimum cosine of the angle between the z axis of an upright body and the vertical
UPRIGHT = 0.8

# A robot has fallen if the ground clearance of its base is below this share of the clearance at the start
FALLEN_SHARE = 0.2

# Maximum distance from the origin of a standing robot's base to the lowest point of the base, as a share of the
# height of the origin above the ground.
MAX_BELLY = 0.9

# Maximum height of an origin that is near the ground, as a share of the height of the robot
LOW_ORIGIN = 0.1

# Minimum density of the medium in which a robot swims. Air has 1.2 kg/m³, and water has 1000 kg/m³.
FLUID_KG_M3 = 100.0

# Froude number v² / (g h) of the walking speed v of a base at height h.
#
# Animals walk at Froude numbers of up to about 0.5 (Alexander 1984, The gaits of bipedal and quadrupedal animals).
FROUDE = 0.25


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base of a robot that moves: a floating base, or a base on slide joints and hinges, as in a planar robot."""

    # Name of the free joint, or, if there is none, of the slide joint along which the robot moves forward
    joint: str
    # Whether the joint is a free joint
    is_free: bool
    # Name of the vertical slide joint, if there is one
    height_joint: str | None
    # Names of the hinges of the base that have a horizontal axis
    tilt_joints: tuple[str, ...]
    # Whether the robot can fall: gravity acts on it, it can move vertically, and it does not swim
    can_fall: bool
    # Whether the z axis of the base points up at the start
    is_upright: bool
    # Height by which the robot must be lifted, because it penetrates the ground in the start state; 0 if it penetrates
    # the ground by at most TOLERATED_DEPTH_M.
    rise_m: float
    # Minimum height of the base of a robot that has not fallen; without a free joint, minimum position of the vertical
    # slide joint. None if the origin of the base is near the ground, as for a mobile base: it does not sink in a fall.
    min_height_m: float | None
    # Walking speed for a robot of this height; for a robot that swims, half its length per second
    speed_m_s: float


def find_base(model: mujoco.MjModel, start: mujoco.MjData, root: Sequence[int]) -> Base:
    """Measure the base of a robot that moves."""
    import mujoco

    # Joints of the base
    is_free = bool(model.jnt_type[root[0]] == mujoco.mjtJoint.mjJNT_FREE)
    slides = [j for j in root if not is_free and not is_hinge(model, j)]
    hinges = [j for j in root if not is_free and is_hinge(model, j)]
    forward = root[0] if is_free else max(slides, key=lambda j: abs(start.xaxis[j, 0]))
    vertical = [j for j in slides if abs(start.xaxis[j, 2]) > UPRIGHT]
    # Depth by which the robot penetrates the ground, and height of its base after it is lifted
    body = int(model.jnt_bodyid[root[0]])
    ground_m = ground_height(model, start)
    depth_m = max((-c.dist for c in start.contact if 0 in model.body_weldid[model.geom_bodyid[c.geom]]), default=0.0)
    rise_m = depth_m if depth_m > TOLERATED_DEPTH_M else 0.0
    height_m = float(start.xpos[body, 2]) + rise_m - ground_m
    belly_m = min(_clearance(model, start, body), height_m)
    # If the robot lies, or the bounding boxes of its base reach the ground, belly_m is not meaningful.
    if belly_m > MAX_BELLY * height_m:
        belly_m = 0.5 * height_m
    corners = corners_below(model, start, body)
    top_m = float(corners[:, 2].max()) + rise_m - ground_m if len(corners) else height_m
    min_height_m = None
    if height_m > LOW_ORIGIN * top_m:
        min_height_m = ground_m + belly_m + FALLEN_SHARE * (height_m - belly_m)
        if vertical:
            min_height_m -= float(start.xpos[body, 2] - start.qpos[model.jnt_qposadr[vertical[0]]])
    # Whether the robot can fall, and its length, for the speed
    can_fall = has_weight(model) and (is_free or bool(vertical))
    length_m = float(np.ptp(corners, axis=0).max()) if len(corners) else 0.2
    return Base(
        joint=model.joint(forward).name,
        is_free=is_free,
        height_joint=model.joint(vertical[0]).name if vertical else None,
        tilt_joints=tuple(model.joint(j).name for j in hinges if abs(start.xaxis[j, 2]) < 1.0 - UPRIGHT),
        can_fall=can_fall,
        is_upright=bool(start.xmat[body, 8] > UPRIGHT),
        rise_m=rise_m,
        min_height_m=min_height_m,
        speed_m_s=math.sqrt(FROUDE * GRAVITY_M_S2 * max(height_m, 0.1)) if can_fall else length_m / 2,
    )


def has_weight(model: mujoco.MjModel) -> bool:
    """Return whether gravity pulls the robot down: gravity is on, and the robot does not float in a fluid."""
    import mujoco

    is_off = model.opt.disableflags & int(mujoco.mjtDisableBit.mjDSBL_GRAVITY) or not model.opt.gravity.any()
    return not is_off and model.opt.density < FLUID_KG_M3


def ground_height(model: mujoco.MjModel, data: mujoco.MjData) -> float:
    """Return the height of the highest horizontal plane in m; 0 if the model has none."""
    import mujoco

    is_level = data.geom_xmat[:, 8] > UPRIGHT  # excludes walls
    planes = is_level & (model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE))
    return float(data.geom_xpos[planes, 2].max(initial=-np.inf)) if planes.any() else 0.0


def _clearance(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> float:
    """Return the height of a body's origin above the lowest point of all colliding geoms fixed to it, in m."""
    fixed = (model.body_weldid[model.geom_bodyid] == model.body_weldid[body]) & (
        model.geom_contype | model.geom_conaffinity != 0
    )
    up = data.geom_xmat[fixed, 6:]
    centre, half = model.geom_aabb[fixed, :3], model.geom_aabb[fixed, 3:]
    lowest_m = data.geom_xpos[fixed, 2] + (up * centre).sum(axis=1) - (np.abs(up) * half).sum(axis=1)
    return float(data.xpos[body, 2] - lowest_m.min()) if fixed.any() else 0.0
