"""Height scan: heights of the ground around a robot, read from a height field or measured by rays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco_warp._src.types import vec6

from mjlab_dist.env.term import LazySensor
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import kernels
from mjlab_dist.mdp.mirror import Image, Mirror, mirrored, place_images
from mjlab_dist.sim.height_field import ground_of, is_still
from mjlab_dist.sim.names import element_names, find_names

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

RAYS_START_M = 5.0
"""Height of the rays' starting points above the robot, so that rays also hit ground that is higher than the robot."""

MISSED_M = 5.0
"""If a ray hits nothing, the ground is assumed to be this far below the robot."""


class HeightScan(LazySensor):
    """Distances from a floating base down to the ground, at a grid of points that turns with the base's heading.

    The grid of points follows the base's current position in ``qpos``, so ``forward_before_observation`` is needed only
    if the scanned geoms move. The class can be used directly as an observation. If several groups or a reward use the
    scan, make it a sensor and observe :func:`height_scan`: the rays are then cast once per state.

    Attributes:
        offsets: Horizontal offsets of the points from the base, forward and left, in m, (k, 2), in the order of the
            observation.
        heights: Distances to the ground minus ``offset_m``, in m, (num_envs, k).
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
        entity: str | None = None,
    ) -> None:
        """Look up the geoms, and record the ray casting.

        Args:
            env: The envs.
            size_m: Length and width of the grid, forward and sideways. The base is in its middle.
            spacing_m: Distance between neighboring points.
            offset_m: Distance that is subtracted from each value, such as the usual height of the base above ground.
            geoms: Regular expressions that match the names of the geoms to scan. Rays pass through all other geoms.
            joint: The robot's free joint.
            entity: Entity that the geoms belong to; None for all.

        Raises:
            UserError: If an expression matches no geom, or the size and spacing do not define a grid.
        """
        # Geoms to scan, and the grid of points
        model = env.sim.model
        names = element_names(model, "geom", entity, env.cfg.sim.entities)
        chosen = find_names("geoms", geoms, names)
        self.offsets = torch.from_numpy(_grid(size_m, spacing_m)).to(env.device)
        env.base(joint)  # raises if the joint is not a free joint
        # Recorded program
        pose = env.sim.qpos[:, env.joints[joint].qpos]
        self.heights = torch.zeros(env.num_envs, len(self.offsets), device=env.device)
        grid: list[Any] = [wp.from_torch(tensor) for tensor in (pose, self.offsets)]
        if len(chosen) == 1 and is_still(model, int(chosen[0])):
            cast = self._lookup(env, int(chosen[0]), grid, offset_m)
        else:
            cast = self._ray_casting(env, chosen, grid, offset_m)
        self._cast = env.sim.record(cast, changes_state=False)

    def _lookup(self, env: Env, geom: int, grid: list[Any], offset_m: float) -> Callable[[mjw.Model, mjw.Data], None]:
        """Return a program that reads the heights of a height field. On a GPU it takes far less time than rays."""
        with wp.ScopedDevice(env.device):
            ground = ground_of(env.sim.model, geom)
        heights: Any = wp.from_torch(self.heights)

        def look_up(on_device: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (the signature of recorded programs)
            inputs = [*grid, ground, geom, data.geom_xpos, MISSED_M, offset_m]
            wp.launch(kernels.scan_ground, self.heights.shape, inputs, [heights])

        return look_up

    def _ray_casting(
        self, env: Env, chosen: Sequence[int], grid: list[Any], offset_m: float
    ) -> Callable[[mjw.Model, mjw.Data], None]:
        """Return a program that places the rays, casts them, and reads the heights."""
        shape = self.heights.shape
        starts, normals, downward = torch.zeros(3, *shape, 3, device=env.device)
        downward[..., 2] = -1.0
        distances = torch.zeros(shape, device=env.device)
        nobody = torch.full(shape[1:], -1, dtype=torch.int32, device=env.device)
        marks = torch.zeros(env.sim.model.ngeom, dtype=torch.int32, device=env.device)
        marks[chosen] = 1
        hits = torch.zeros(shape, dtype=torch.int32, device=env.device)
        vectors: list[Any] = [wp.from_torch(tensor, dtype=wp.vec3) for tensor in (starts, downward, normals)]
        numbers: list[Any] = [wp.from_torch(tensor) for tensor in (marks, nobody, distances, hits)]
        heights: Any = wp.from_torch(self.heights)

        def cast(on_device: mjw.Model, data: mjw.Data) -> None:
            starts, directions, normal = vectors
            groups, excluded, distance, hit = numbers
            wp.launch(kernels.place_rays, shape, [*grid, RAYS_START_M, starts])
            seen = copy.copy(on_device)
            seen.geom_group = groups
            seen.ngeom = chosen[-1] + 1  # a ray tests geoms in order: exclude those after the last chosen one
            marked = vec6(0, 1, 0, 0, 0, 0)
            mjw.rays(seen, data, starts, directions, marked, True, excluded, distance, hit, normal)
            wp.launch(kernels.read_rays, shape, [distance, RAYS_START_M, MISSED_M, offset_m, heights])

        return cast

    def measure(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        self._cast()

    def mirrored(self, mirror: Mirror) -> Image:  # noqa: ARG002 (every term takes it)
        return place_images(np.pad(self.offsets.double().cpu().numpy(), ((0, 0), (0, 1))))

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the distances to the ground minus the offset, in m, (num_envs, k)."""
        self.refresh(env)
        return self.heights


@mirrored(lambda mirror, sensor: mirror.term(mirror.env.sensor(sensor, HeightScan)))
def height_scan(env: Env, sensor: str) -> torch.Tensor:
    """Return the values of a :class:`HeightScan` of ``env.sensors``, in m; (num_envs, k)."""
    return env.sensor(sensor, HeightScan).heights


def _grid(size_m: tuple[float, float], spacing_m: float) -> np.ndarray:
    """Return the points of a grid around 0, (k, 2): rows from back to front, and from right to left in each row."""
    if not (0 < spacing_m < np.inf and min(size_m) >= 0 and max(size_m) < np.inf):
        raise UserError(
            f"height scan: size_m {size_m[0]} {size_m[1]} and spacing_m {spacing_m} make no grid; size_m must be "
            "at least 0, and spacing_m positive"
        )
    sides = []
    for size in size_m:
        num = int(size / spacing_m + 1e-6) + 1
        sides.append((np.arange(num) - (num - 1) / 2) * spacing_m)
    return np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2).astype(np.float32)
