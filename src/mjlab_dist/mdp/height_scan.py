"""Heights of the ground around a robot, by MuJoCo Warp's ray casting."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco_warp._src.types import vec6

from mjlab_dist.env import kernels
from mjlab_dist.env.columns import find_names
from mjlab_dist.env.term import Sensor
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

RAYS_START_M = 5.0
"""Rays start this far above the robot, and so meet ground that is higher than it."""

MISSED_M = 5.0
"""Where a ray meets nothing, the ground counts as this far below the robot."""


class HeightScan(Sensor):
    """How far below a free-floating body the ground is, at a grid of points around it that turns with its heading.

    Rays are cast straight down, by the body's present position: no forward is needed, but for geoms that move. As an observation, name the class itself;
    where several groups observe it, or a reward does, make it a sensor and observe :func:`height_scan`, so that rays are cast
    once a step.

    Attributes:
        offsets: Where the points lie, (k, 2) in m, forward and to the left of the body, in the order of what is observed.
    """

    def __init__(
        self,
        env: Env,
        *,
        size_m: tuple[float, float] = (1.6, 1.0),
        spacing_m: float = 0.1,
        offset_m: float = 0.5,
        geoms: tuple[str, ...] = ("floor",),
        joint: str = "root",
    ) -> None:
        """Look up the geoms, record the ray casting.

        Args:
            env: The envs.
            size_m: Extent of the grid, forward and sideways; the body is in its middle.
            spacing_m: Distance of its points.
            offset_m: What is taken off the distances, so that they are about 0 where the ground is flat.
            geoms: Regular expressions of the names of the geoms that rays meet; they pass through all others.
            joint: The robot's free joint.

        Raises:
            UserError: If a name fits no geom, or there is no grid of this size.
        """
        if not (0 < spacing_m < np.inf and min(size_m) >= 0 and max(size_m) < np.inf):
            raise UserError(
                f"height scan: size_m {size_m[0]} {size_m[1]} and spacing_m {spacing_m} make no grid; the first has to be 0 or "
                "more, the second positive"
            )
        model = env.sim.model
        chosen = find_names("geoms", geoms, [model.geom(i).name for i in range(model.ngeom)])
        self.offsets = torch.from_numpy(_grid(size_m, spacing_m)).to(env.device)
        env.base(joint)  # refuses a joint that is not free
        pose = env.sim.qpos[:, env.joints[joint].qpos]
        shape = (env.num_envs, len(self.offsets))
        starts, normals, downward = torch.zeros(3, *shape, 3, device=env.device)
        downward[..., 2] = -1.0
        distances = torch.zeros(shape, device=env.device)
        self._heights = torch.zeros(shape, device=env.device)
        nobody = torch.full(shape[1:], -1, dtype=torch.int32, device=env.device)
        marks = torch.zeros(model.ngeom, dtype=torch.int32, device=env.device)
        marks[chosen] = 1
        hits = torch.zeros(shape, dtype=torch.int32, device=env.device)
        vectors: list[Any] = [wp.from_torch(tensor, dtype=wp.vec3) for tensor in (starts, downward, normals)]
        numbers: list[Any] = [wp.from_torch(tensor) for tensor in (marks, nobody, distances, hits)]
        grid: list[Any] = [wp.from_torch(tensor) for tensor in (pose, self.offsets)]
        heights: Any = wp.from_torch(self._heights)

        def cast(on_device: mjw.Model, data: mjw.Data) -> None:
            starts, directions, normal = vectors
            groups, excluded, distance, hit = numbers
            wp.launch(kernels.place_rays, shape, [*grid, RAYS_START_M, starts])
            seen = copy.copy(on_device)
            seen.geom_group = groups
            seen.ngeom = chosen[-1] + 1  # the search is over all geoms, and those of the world come first
            marked = vec6(0, 1, 0, 0, 0, 0)
            mjw.rays(seen, data, starts, directions, marked, True, excluded, distance, hit, normal)
            wp.launch(kernels.read_rays, shape, [distance, RAYS_START_M, MISSED_M, offset_m, heights])

        self._cast = env.sim.record(cast, changes_state=False)
        self._is_current = False

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        """Forget what was measured before the physics of this step."""
        self._is_current = False

    def reset(self, mask: torch.Tensor) -> None:  # noqa: ARG002 (a step resets at most some envs, and may move these)
        """Forget what was measured before the resets of this step."""
        self._is_current = False

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        """Distance of the ground below the body in m, less the offset, (num_envs, k); cast at the first call of a step."""
        if not self._is_current:
            self._cast()
            self._is_current = True
        return self._heights


def height_scan(env: Env, sensor: str) -> torch.Tensor:
    """What a :class:`HeightScan` of ``env.sensors`` measures, in m; (num_envs, k)."""
    return env.sensor(sensor, HeightScan)(env)


def _grid(size_m: tuple[float, float], spacing_m: float) -> np.ndarray:
    """Points of a grid around 0, row by row from behind to the front, from right to left in each, (k, 2)."""
    sides = []
    for size in size_m:
        num = int(size / spacing_m + 1e-6) + 1
        sides.append((np.arange(num) - (num - 1) / 2) * spacing_m)
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)
