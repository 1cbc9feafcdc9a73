"""If ``nan_policy`` is reset: find numbers that are not finite, and replace them in observations."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mjlab_dist.env.episodes import Episodes
from mjlab_dist.sim import Simulation


class NotFinite:
    """Search for numbers that are not finite.

    Attributes:
        num_resets: Number of episodes that ended because of such numbers, a scalar of int64.
    """

    def __init__(self, sim: Simulation, episodes: Episodes) -> None:
        self.num_resets = torch.zeros((), dtype=torch.long, device=sim.device)
        self._state = (sim.qpos, sim.qvel, sim.view("act"))
        self._episodes = episodes

    def find(self) -> None:
        """Mark and count the envs with a non-finite number in the physics, a reward or the latest observation."""
        broken = self._episodes.broken
        numbers = torch.cat([*self._state, self._episodes.earned.T], dim=1)
        broken.logical_or_(numbers.isfinite().all(dim=1).logical_not_())
        self.num_resets += broken.sum()

    def replace(self, observed: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return observations with 0 in place of non-finite numbers, and mark the envs that have any.

        Args:
            observed: Observations by group, (num_envs, width) each.
        """
        finite = {name: torch.nan_to_num(row, 0.0, 0.0, 0.0) for name, row in observed.items()}
        replaced = torch.cat([finite[name] != row for name, row in observed.items()], dim=1)
        torch.any(replaced, dim=1, out=self._episodes.broken)
        return finite
