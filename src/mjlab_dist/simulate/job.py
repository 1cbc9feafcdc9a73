"""Description of a simulation. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


def require_same(sizes: Sequence[Sizes]) -> Sizes:
    """Return the sizes, which must be the same for all variants."""
    for other in sizes[1:]:
        for field in dataclasses.fields(Sizes):
            first, second = getattr(sizes[0], field.name), getattr(other, field.name)
            if first != second:
                raise UserError(f"variants: have different {field.name} ({first} and {second}); use the same for all")
    return sizes[0]
