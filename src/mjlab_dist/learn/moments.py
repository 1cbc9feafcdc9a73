"""Moments (mean and variance) of advantages, observations and rewards over all ranks, as sums that ranks can add.

The sums are a count, the sum of deviations from a shift (a number that all ranks share), and the sum of squared
deviations, in fp64 (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance"). If ranks add their
sums, the results are the sums for the data of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict


def advantage_moments(advantages: torch.Tensor) -> torch.Tensor:
    """Compute the count, sum and sum of squares of advantages.

    Returns:
        Count, sum and sum of squares, (rows, 3) in fp64.
    """
    values = advantages.double()
    count = torch.full_like(values[:, 0], values.shape[1])
    return torch.stack([count, values.sum(dim=1), values.square().sum(dim=1)], dim=1)


def normalize(advantages: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
    """Normalize every row to mean 0 and standard deviation 1.

    Returns:
        Normalized advantages of the same shape and dtype. As in rsl_rl, the variance is the unbiased one, and 1e-8 is
        added to the standard deviation.
    """
    count, total, squares = moments.unsqueeze(-1).unbind(dim=1)
    mean = total / count
    deviation = ((squares - count * mean.square()) / (count - 1)).clamp(min=0).sqrt()
    return ((advantages - mean) / (deviation + 1e-8)).to(advantages.dtype)


class ClippedNormalization(EmpiricalNormalization):
    """Normalizes observations, and clips the result."""

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        """Create the buffers, as in rsl_rl."""
        super().__init__(shape)
        self.clip = clip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize and clip. This repeats rsl_rl's formula, because TorchScript (for export) has no ``super()``."""
        return ((x - self._mean) / (self._std + self.eps)).clamp(-self.clip, self.clip)


class NormalizerMoments:
    """Moments of the observations since all ranks last had equal normalizers, as sums that ranks can add.

    The state of these equal normalizers is called the agreed state. It already contains the earlier observations, so
    ranks add only the sums of newer observations.

    Attributes:
        pending: (1 + 2 * width,) in fp64: count, sums of deviations from the agreed mean, sums of their squares.
    """

    def __init__(self, normalizer: EmpiricalNormalization, groups: Sequence[str]) -> None:
        """Start from the current state of a normalizer, whose input is the concatenation of some observation groups."""
        self._normalizer = normalizer
        self._groups = groups
        self.rebase()

    def rebase(self) -> None:
        """Make the normalizer's current state the agreed state. It must be the same on every rank."""
        state = {name: t.to(torch.float64, copy=True) for name, t in self._normalizer.state_dict().items()}
        self._count, self._mean, self._var = state["count"], state["_mean"].squeeze(0), state["_var"].squeeze(0)
        self.pending = torch.zeros(1 + 2 * len(self._mean), dtype=torch.float64, device=self._mean.device)

    def normalized(self) -> list[torch.Tensor]:
        """Return the normalizer's own tensors, not copies of them."""
        return list(self._normalizer.state_dict().values())

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the normalizer, the agreed state and the pending sums, by name, without copying."""
        agreed = {"agreed_count": self._count, "agreed_mean": self._mean, "agreed_var": self._var}
        return {**self._normalizer.state_dict(), **agreed, "pending": self.pending}

    def observe(self, obs: TensorDict) -> None:
        """Add observations to the pending sums, with groups of shape (samples, ...)."""
        deviation = torch.cat([obs[group] for group in self._groups], dim=-1).double() - self._mean
        count = torch.full_like(self.pending[:1], len(deviation))
        self.pending += torch.cat([count, deviation.sum(dim=0), deviation.square().sum(dim=0)])

    def apply(self) -> None:
        """Update the normalizer with the agreed state and the pending sums."""
        if self._normalizer.until is not None:
            self.pending *= self._count < self._normalizer.until
        width = len(self._mean)
        new, total, squares = self.pending.split([1, width, width])
        count = self._count + new
        shift = total / count
        var = ((self._count * self._var + squares) / count - shift.square()).clamp(min=0)
        state = self._normalizer.state_dict()  # the buffers themselves, not copies
        state["count"].copy_(count.squeeze(0))
        state["_mean"].copy_(self._mean + shift)
        state["_var"].copy_(var)
        state["_std"].copy_(var.sqrt())


class RewardScale:
    """Standard deviation of discounted sums of rewards. If rewards are divided by it, values are of the order of 1.

    The method is from Engstrom et al. 2020, "Implementation matters in deep policy gradients", arXiv:2005.12729,
    section 3. Here, it uses the data of all ranks, including the current rollout, and one value for the whole rollout.

    Attributes:
        discounted: Sum of each env's rewards in the current episode, (num_envs,). A reward that is k steps old is
            multiplied by gamma^k.
        pending: Count, sum and sum of squares of this rollout's discounted sums, (3,) in fp64, to be summed over ranks.
        sums: The same quantities over all rollouts and ranks, (3,) in fp64; equal on every rank.
    """

    def __init__(self, num_envs: int, gamma: float, device: str) -> None:
        """Start without data."""
        self._gamma = gamma
        self.discounted = torch.zeros(num_envs, device=device)
        self.pending, self.sums = torch.zeros(2, 3, dtype=torch.float64, device=device)

    def observe(self, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Add the rewards of a step to the discounted sums, and these sums to the pending sums.

        Args:
            rewards: (num_envs,).
            dones: Whether the step ended an episode, (num_envs,) of bool.
        """
        self.discounted.mul_(self._gamma).add_(rewards)
        values = self.discounted.double()
        self.pending += torch.stack([torch.full_like(values[0], len(values)), values.sum(), values.dot(values)])
        self.discounted.masked_fill_(dones, 0.0)

    def apply(self) -> torch.Tensor:
        """Add the pending sums, which must already be summed over ranks.

        Returns:
            The inverse of the standard deviation, a scalar.
        """
        self.sums += self.pending
        self.pending.zero_()
        count, total, squares = self.sums
        variance = (squares / count - (total / count).square()).clamp(min=0)
        return (1.0 / (variance + 1e-8).sqrt()).to(self.discounted.dtype)
