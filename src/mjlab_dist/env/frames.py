"""Poses and velocities of bodies, sites, geoms and floating bases, computed once per state of the envs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.env import frame_kernels, kernels
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation
from mjlab_dist.sim.engine import Program

FrameKind = Literal["body", "site", "geom"]
"""Kind of element that has a frame."""


class Frames:
    """Poses and velocities of k frames, in the world or relative to another frame.

    The frame of a body is at the body's origin, the frame of a site at the site, and the frame of a geom at the geom's
    center. The linear velocity is the velocity of this point. The first read after a state change computes all tensors
    at once; a step in which no term reads them costs nothing. The first read after the next change overwrites the
    tensors: clone them to keep them.

    Like ``sim.view("xpos")``, the values describe the state at the start of the last physics step. After
    ``sim.forward()``, they describe the current state. If ``forward_before_observation`` is set, the env calls
    ``sim.forward()`` before observations are computed.

    Attributes:
        names: Names of the frames, in model order, with the prefix of their entity.
    """

    def __init__(self, sim: Simulation, names: tuple[str, ...], measure: Program, results: list[torch.Tensor]) -> None:
        """Record the kernels that compute the results.

        Args:
            sim: The physics.
            names: Names of the frames.
            measure: Function that launches these kernels.
            results: Position, quaternion, linear and angular velocity, (num_envs, k, 3 or 4).
        """
        self.names = names
        self._sim = sim
        self._measure = measure
        self._results = results
        self._run = sim.record(measure, changes_state=False)
        self._version: tuple[int, ...] | None = None

    @property
    def pos(self) -> torch.Tensor:
        """Positions in m, (num_envs, k, 3)."""
        return self._current(0)

    @property
    def quat(self) -> torch.Tensor:
        """Orientations as quaternions w x y z, (num_envs, k, 4)."""
        return self._current(1)

    @property
    def linear_velocity(self) -> torch.Tensor:
        """Linear velocities in m/s, in the world frame or the reference's frame, (num_envs, k, 3)."""
        return self._current(2)

    @property
    def angular_velocity(self) -> torch.Tensor:
        """Angular velocities in rad/s, in the world frame or the reference's frame, (num_envs, k, 3)."""
        return self._current(3)

    def relative_to(self, reference: Frames) -> Frames:
        """Return these frames as an observer in another frame measures them.

        Positions and orientations are relative to the reference, and in its axes. Velocities are the derivatives of
        these positions and orientations, so they depend on the rotation of the reference. Call this once, in the
        constructor of a term.

        Args:
            reference: One frame, or one for each of these frames.

        Raises:
            UserError: If the reference has the wrong number of frames.
        """
        count = len(reference.names)
        if count not in (1, len(self.names)):
            raise UserError(
                f"reference {' '.join(reference.names)}: has {count} frames; it must have 1 or {len(self.names)}"
            )
        results = [torch.zeros_like(tensor) for tensor in self._results]
        arrays = [*_arrays(self._results), *_arrays(reference._results)], _arrays(results)
        shape = self._results[0].shape[:2]

        def measure(model: mjw.Model, data: mjw.Data) -> None:
            self._measure(model, data)
            reference._measure(model, data)
            wp.launch(frame_kernels.relate_frames, shape, *arrays)

        return Frames(self._sim, self.names, measure, results)

    def _current(self, i: int) -> torch.Tensor:
        version = self._sim.version
        if version is None or version != self._version:
            self._run()
            self._version = version
        return self._results[i]


def make_frames(sim: Simulation, kind: FrameKind, ids: Sequence[int]) -> Frames:
    """Return the frames of elements, with poses and velocities in the world frame.

    Args:
        sim: The physics.
        kind: Kind of the elements.
        ids: Their ids in the model.
    """
    model, shape = sim.model, (sim.num_envs, len(ids))
    bodies = ids if kind == "body" else [int(getattr(model, f"{kind}_bodyid")[i]) for i in ids]
    results = [torch.zeros(*shape, size, device=sim.device) for size in (3, 4, 3, 3)]
    outputs = _arrays(results)
    with wp.ScopedDevice(sim.device):
        tables = [wp.array(list(ids), dtype=int), wp.array(list(bodies), dtype=int)]
        no_turn = wp.full((1, 1), wp.quat(1.0, 0.0, 0.0, 0.0), dtype=wp.quat)

    def measure(on_device: mjw.Model, data: mjw.Data) -> None:
        positions = data.xpos if kind == "body" else getattr(data, f"{kind}_xpos")
        turns = no_turn if kind == "body" else getattr(on_device, f"{kind}_quat")
        state = [data.xquat, data.cvel, data.subtree_com, on_device.body_rootid]
        wp.launch(frame_kernels.measure_frames, shape, [*tables, positions, turns, *state], outputs)

    return Frames(sim, tuple(getattr(model, kind)(i).name for i in ids), measure, results)


def _arrays(tensors: list[torch.Tensor]) -> list[Any]:
    return [wp.from_torch(tensor, dtype=wp.quat if tensor.shape[2] == 4 else wp.vec3) for tensor in tensors]


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
