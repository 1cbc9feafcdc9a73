"""Description of a simulation, and the shapes of its results. Imports no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import torch

# Tensors by name
Tensors = dict[str, "torch.Tensor"]

# Prefix of the names of observations before resets
FINAL = "final_observations"

# Prefix of the names of the observations after a rollout
LAST = "last_observations"

# Bytes of an element, by the name of its type
BYTES = {"float32": 4, "bool": 1}


class Entry(NamedTuple):
    """Description of a tensor over all envs."""

    shape: tuple[int, ...]
    dtype: str
    # Index of the dimension of the envs
    env_dim: int

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * BYTES[self.dtype]

    def with_envs(self, num_envs: int) -> Entry:
        """Return the description of the same tensor for a different number of envs."""
        shape = (*self.shape[: self.env_dim], num_envs, *self.shape[self.env_dim + 1 :])
        return self._replace(shape=shape)


# Descriptions of tensors over all envs, by name
Layout = dict[str, Entry]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A simulation: the envs of all ranks."""

    # Config of each variant. All variants have the same number of envs; the envs of variant 0 come first.
    configs: tuple[TrainConfig, ...]
    num_envs: int
    # Random seed. All variants use the same random numbers.
    seed: int
    # Whether steps also return the observations before resets
    final_observations: bool

    @property
    def envs_per_variant(self) -> int:
        """Number of envs of each variant."""
        return self.num_envs // len(self.configs)

    def rows(self, rank: int, world_size: int) -> range:
        """Return the global ids of the envs of a rank. The numbers of envs of two ranks differ by at most one."""
        return range(self.num_envs * rank // world_size, self.num_envs * (rank + 1) // world_size)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of the envs of a task."""

    # Width of each observation group
    observations: dict[str, int]
    num_actions: int
    action_names: tuple[str, ...]
    # Minimum and maximum to which each action is clipped; infinite if it is not clipped
    action_bounds: tuple[tuple[float, float], ...]
    # Simulated seconds per control step
    step_dt_s: float
    # Whether the results of a step also have the observations before resets
    final_observations: bool

    def action_layout(self, *dims: int) -> Layout:
        """Return the layout of actions."""
        return {"actions": Entry((*dims, self.num_actions), "float32", len(dims) - 1)}

    def step_layout(self, *dims: int) -> Layout:
        """Return the layout of the results of steps."""
        return {
            **self._observations("observations", *dims),
            **(self._observations(FINAL, *dims) if self.final_observations else {}),
            "rewards": Entry(dims, "float32", len(dims) - 1),
            "terminated": Entry(dims, "bool", len(dims) - 1),
            "truncated": Entry(dims, "bool", len(dims) - 1),
        }

    def rollout_layout(self, num_steps: int, num_envs: int) -> Layout:
        """Return the layout of the results of a rollout."""
        dims = (num_steps, num_envs)
        return {**self.step_layout(*dims), **self.action_layout(*dims), **self._observations(LAST, num_envs)}

    def _observations(self, prefix: str, *dims: int) -> Layout:
        return {
            f"{prefix}.{name}": Entry((*dims, width), "float32", len(dims) - 1)
            for name, width in self.observations.items()
        }


def require_same(sizes: Sequence[Sizes]) -> Sizes:
    """Return the sizes, which must be the same for all variants."""
    for other in sizes[1:]:
        for field in dataclasses.fields(Sizes):
            first, second = getattr(sizes[0], field.name), getattr(other, field.name)
            if first != second:
                raise UserError(f"variants: have different {field.name} ({first} and {second}); use the same for all")
    return sizes[0]
