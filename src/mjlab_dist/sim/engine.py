"""The interface of the two engines that compute the physics: MuJoCo Warp, and MuJoCo's C code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.config import SimConfig
from mjlab_dist.sim.recorder import Recorder

# A function that launches Warp kernels
Program = Callable[[mjw.Model, mjw.Data], None]


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """The model and the arrays of a simulation. They hold the state, whatever engine computes a step."""

    # The model on the host
    model: mujoco.MjModel
    # The model on the device
    put: mjw.Model
    # State and results of all envs
    data: mjw.Data
    # Fields of the data with a row per env, by name
    views: Mapping[str, torch.Tensor]
    # Those fields that the next step depends on
    physics: Mapping[str, torch.Tensor]
    # Fields of the model with one value per env, (num_envs, ...) each: those that are written to, and those that are
    # derived from them.
    fields: Mapping[str, torch.Tensor]
    # Names of the fields of the model that are written to
    written: Sequence[str]
    # Envs of the latest reset, (num_envs,) of bool
    reset_mask: wp.array
    # Bits of mujoco_warp.OverflowType, (num_envs,)
    overflow: wp.array
    # Largest counts of constraint rows and contacts, (num_envs + 1,)
    demand: wp.array


class Engine(Protocol):
    """Computes the physics of all envs, in place."""

    data: mjw.Data

    def __init__(self, arrays: Arrays, recorder: Recorder, config: SimConfig, key: int | None) -> None:
        """Prepare to step."""

    def step(self) -> None:
        """Advance every env by one control step."""

    def forward(self) -> None:
        """Recompute everything that derives from positions and velocities, in every env."""

    def reset(self) -> None:
        """Reset the envs of the mask to the start state."""

    def update_constants(self) -> None:
        """Recompute the constants that derive from fields with one value per env, and the poses of static geoms."""

    def before_substeps(self, programs: Sequence[Program]) -> None:
        """Run programs before every substep, in place of those of an earlier call."""

    def record_wrenches(self) -> Callable[[], None]:
        """Return a function that computes accelerations and wrenches of bodies (``mj_rnePostConstraint``)."""
        ...

    def provide(self, name: str) -> None:
        """Keep a field of the data up to date from now on, because somebody reads it."""

    def num_bytes(self) -> int:
        """Return the memory in bytes that the engine uses in addition to the arrays."""
        ...
