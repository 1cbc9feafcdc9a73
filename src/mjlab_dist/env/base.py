"""Quantities of a free-floating body that many terms use, computed once per state of the envs."""

from __future__ import annotations

import torch

from mjlab_dist.env import kernels
from mjlab_dist.sim import Simulation


class Base:
    """Gravity, velocities and heading of a free-floating body.

    The first read after a state change computes all of them with one kernel. A state change is a step or a reset of the
    simulation, or a write to ``sim.qpos``, ``sim.qvel`` or the field ``gravity`` by torch. After a write by other code,
    such as a Warp kernel, call ``sim.mark_changed()``.
    The tensors are overwritten after the next change: clone them to keep them.
    """

    def __init__(self, sim: Simulation, qpos: slice, qvel: slice) -> None:
        """Allocate the results and record the kernel."""
        self._sim = sim
        self._gravity, self._linear_velocity, self._level_velocity = torch.zeros(3, sim.num_envs, 3, device=sim.device)
        self._heading = torch.zeros(sim.num_envs, device=sim.device)
        self._acceleration = sim.field("gravity")
        results = (self._gravity, self._linear_velocity, self._level_velocity, self._heading)
        arrays = [sim.qpos[:, qpos], sim.qvel[:, qvel], self._acceleration, *results]
        self._measure = sim.record_launch(kernels.measure_base, sim.num_envs, arrays, changes_state=False)
        self._version: tuple[int, ...] | None = None

    @property
    def gravity(self) -> torch.Tensor:
        """Unit vector of gravity in the body's frame, (0, 0, -1) if upright; (num_envs, 3).

        Without gravity, it is that of gravity along -z.
        """
        return self._current(self._gravity)

    @property
    def linear_velocity(self) -> torch.Tensor:
        """Linear velocity in the body's frame, in m/s; (num_envs, 3)."""
        return self._current(self._linear_velocity)

    @property
    def level_velocity(self) -> torch.Tensor:
        """Linear velocity in the heading frame, which does not pitch or roll, in m/s; (num_envs, 3)."""
        return self._current(self._level_velocity)

    @property
    def heading(self) -> torch.Tensor:
        """Yaw angle of the body's x axis projected onto the ground, in rad; (num_envs,)."""
        return self._current(self._heading)

    def _current(self, result: torch.Tensor) -> torch.Tensor:
        version = self._sim.version
        if version is not None:
            version += (self._acceleration._version,)
        if version is None or version != self._version:
            self._measure()
            self._version = version
        return result
