"""Sums over episodes: rewards of running episodes, totals of ended episodes."""

from __future__ import annotations

from typing import NamedTuple

import torch


class EpisodeTotals(NamedTuple):
    """Sums over the episodes that ended since the previous totals; tensors on the env's device."""

    episodes: torch.Tensor
    """Number of episodes, a scalar."""
    steps: torch.Tensor
    """Number of control steps of these episodes, a scalar."""
    terms: torch.Tensor
    """Weighted rewards of these episodes by term, (num_terms,); the sum over terms is their return."""


class EpisodeSums:
    """Steps and rewards of running episodes, and totals of ended episodes.

    An episode counts only if it was observed from its start and all its values are finite.
    """

    def __init__(self, num_terms: int, num_envs: int, device: str) -> None:
        """Allocate the sums.

        Args:
            num_terms: Number of reward terms.
            num_envs: Number of envs.
            device: Device of the tensors.
        """
        # Rows that are summed over ended episodes: the number 1, the steps, and the reward of each term
        self._ledger = torch.zeros(2 + num_terms, num_envs, device=device)
        self._ledger[0] = 1.0
        # 1 if the running episode counts, else 0; a float because it is a factor
        self._counts = torch.ones(num_envs, device=device)
        self._totals = torch.zeros(2 + num_terms, device=device)

    @property
    def steps(self) -> torch.Tensor:
        """Steps of the running episodes as floats, (num_envs,), written by the env's ``begin_step`` kernel."""
        return self._ledger[1]

    @property
    def rewards(self) -> torch.Tensor:
        """Rewards of the running episodes by term, without weights, (num_terms, num_envs)."""
        return self._ledger[2:]

    def count_all(self, counts: bool) -> None:
        """Set whether the running episodes count.

        Args:
            counts: True to include them in the totals when they end.
        """
        self._counts.fill_(float(counts))

    def leave_out(self, mask: torch.Tensor) -> None:
        """Exclude running episodes from the totals.

        Args:
            mask: Envs of these episodes, (num_envs,) of bool.
        """
        self._counts.masked_fill_(mask, 0.0)

    def end(self, done: torch.Tensor) -> None:
        """Add ended episodes to the totals; the next episodes of these envs count.

        The caller must clear :attr:`rewards` of these envs afterwards.

        Args:
            done: Envs of these episodes, (num_envs,) of bool.
        """
        self._totals.addmv_(self._ledger, done * self._counts)
        self._counts.masked_fill_(done, 1.0)

    def pop_totals(self, weights: torch.Tensor) -> EpisodeTotals:
        """Return the totals since the previous call.

        Args:
            weights: Weights of the reward terms, (num_terms,).
        """
        totals = EpisodeTotals(self._totals[0].clone(), self._totals[1].clone(), weights * self._totals[2:])
        self._totals.zero_()
        return totals

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the next totals depend on, by name."""
        return {"episode_sums": self.rewards.T, "from_start": self._counts, "totals": self._totals}

    def num_bytes(self) -> int:
        """Return the memory of the sums in bytes."""
        return self._ledger.nbytes + self._counts.nbytes + self._totals.nbytes
