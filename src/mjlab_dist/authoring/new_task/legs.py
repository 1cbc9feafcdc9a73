"""The legs of a robot: the chains of joints that end in its lowest links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.authoring.new_task.joints import is_below

if TYPE_CHECKING:
    import mujoco
    from numpy.typing import NDArray

# Maximum height of a foot above the lowest foot, as a share of the height of the base
SAME_HEIGHT = 0.15

# Maximum height of a point of the sole above the sole's lowest point, as a share of the height of the base
SOLE = 0.02


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A leg."""

    # Driven joints of the leg, from the base to the foot
    joints: tuple[int, ...]
    # The body that the last joint moves
    body: int
    # Center of the lowest points of the foot in the frame of body, in m, (3,)
    sole: NDArray[np.float64]
    # Distance from this center to the farthest of the lowest points
    size_m: float

    def foot(self, data: mujoco.MjData) -> NDArray[np.float64]:
        """Return the center of the sole in the world frame, in m, (3,)."""
        return data.xpos[self.body] + data.xmat[self.body].reshape(3, 3) @ self.sole


def find_legs(model: mujoco.MjModel, data: mujoco.MjData, base: int, joints: Sequence[int]) -> list[Leg]:
    """Return the legs of a robot.

    Each chain of driven joints that starts at the base has a last link. This link is a foot if it is about as low as
    the lowest of all last links.
    """
    # The ends of all chains of joints that start at the base
    bodies = {int(model.jnt_bodyid[joint]) for joint in joints} - {base}
    ends = [
        body
        for body in bodies
        if is_below(model, body, base) and not any(other != body and is_below(model, other, body) for other in bodies)
    ]
    corners = {body: corners_below(model, data, body) for body in sorted(ends)}
    corners = {body: points for body, points in corners.items() if len(points)}
    if not corners:
        return []
    # The legs: the chains with the lowest ends
    lowest_m = min(float(points[:, 2].min()) for points in corners.values())
    height_m = float(data.xpos[base, 2]) - lowest_m
    legs: list[Leg] = []
    for body, points in corners.items():
        low_m = float(points[:, 2].min())
        if low_m - lowest_m > SAME_HEIGHT * height_m:
            continue
        sole = points[points[:, 2] <= low_m + SOLE * height_m]
        center = sole.mean(axis=0)
        legs.append(
            Leg(
                joints=tuple(chain_to(model, base, body, joints)),
                body=body,
                sole=data.xmat[body].reshape(3, 3).T @ (center - data.xpos[body]),
                size_m=float(np.linalg.norm(sole - center, axis=1).max()),
            )
        )
    return legs


def chain_to(model: mujoco.MjModel, base: int, body: int, joints: Sequence[int]) -> list[int]:
    """Return the driven joints between the base and a body, starting at the base."""
    chain: list[int] = []
    while body not in {base, 0}:
        chain = [joint for joint in joints if model.jnt_bodyid[joint] == body] + chain
        body = int(model.body_parentid[body])
    return chain


def corners_below(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> NDArray[np.float64]:
    """Return the corners of the bounding boxes of colliding geoms in the world frame, in m, (n, 3).

    The geoms are those of a body and of all bodies below it in the tree.
    """
    below = np.array([is_below(model, int(b), body) for b in model.geom_bodyid])
    return box_corners(model, data, below & ((model.geom_contype | model.geom_conaffinity) != 0))


def box_corners(model: mujoco.MjModel, data: mujoco.MjData, geoms: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the corners of the bounding boxes of some geoms in the world frame, in m, (8 * geoms, 3)."""
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    boxes = model.geom_aabb[geoms]
    local = boxes[:, None, :3] + signs * boxes[:, None, 3:]
    rotation = data.geom_xmat[geoms].reshape(-1, 3, 3)
    return (np.einsum("gij,gcj->gci", rotation, local) + data.geom_xpos[geoms][:, None]).reshape(-1, 3)
