"""Check whether the first camera of an MJCF shows the robot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.legs import box_corners
from mjlab_dist.play.choice import VIDEO_SIZE

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Width of a video frame divided by its height
ASPECT = VIDEO_SIZE[0] / VIDEO_SIZE[1]

# Minimum share of the corners of a robot's bounding boxes that a camera must show
MIN_INSIDE = 0.8

# Minimum size of the robot in the picture, as a share of the picture's height
MIN_SIZE = 0.02


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of the scene that a camera must show."""

    # Center of this part
    center_m: tuple[float, float, float]
    # Diagonal of the box around this part
    extent_m: float
    # Height of the lowest point of this part and of all fixed geoms, on which the robot stands; None without fixed
    # geoms.
    stand_m: float | None


def find_view(model: mujoco.MjModel, start: mujoco.MjData) -> View:
    """Return the view that contains all moving bodies and the bodies that they are attached to."""
    corners = box_corners(model, start, _shown(model))
    if not len(corners):
        return View(center_m=(0.0, 0.0, 0.0), extent_m=1.0, stand_m=None)
    low, high = corners.min(axis=0), corners.max(axis=0)
    x, y, z = map(float, (low + high) / 2)
    fixed = box_corners(model, start, (model.body_weldid[model.geom_bodyid] == 0) & (model.geom_rbound > 0.0))
    stand_m = float(min(low[2], fixed[:, 2].min())) if len(fixed) else None
    return View(center_m=(x, y, z), extent_m=float(np.linalg.norm(high - low)), stand_m=stand_m)


def shows_robot(model: mujoco.MjModel, start: mujoco.MjData) -> bool:
    """Return whether the first camera, which videos use, shows ``MIN_INSIDE`` of the robot in the start state."""
    corners = box_corners(model, start, _shown(model))
    if not model.ncam or not len(corners):
        return bool(model.ncam)
    # Corners in the coordinate system of the camera, which looks along -z
    local = (corners - start.cam_xpos[0]) @ start.cam_xmat[0].reshape(3, 3)
    depth_m = -local[:, 2]
    in_front = depth_m > model.vis.map.znear * model.stat.extent
    # Corners in the picture, with y = 1 at the top of the picture
    picture = local[:, :2] / np.where(in_front, depth_m, 1.0)[:, None]
    picture /= math.tan(math.radians(float(model.cam_fovy[0])) / 2)
    inside = in_front & (np.abs(picture) <= (ASPECT, 1.0)).all(axis=1)
    if inside.mean() < MIN_INSIDE:
        return False
    return bool(np.ptp(picture[inside], axis=0).max() >= 2 * MIN_SIZE)


def _shown(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Return which geoms belong to a kinematic tree that can move, (num_geoms,)."""
    roots = np.unique(model.body_rootid[model.body_weldid != 0])
    return np.isin(model.body_rootid[model.geom_bodyid], roots) & (model.geom_bodyid != 0)
