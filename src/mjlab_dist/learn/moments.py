"""Moments over all ranks: sums that add up, of advantages and of observations.

What ranks share are a count, the sum of deviations from a common shift and the sum of their squares (Chan, Golub and LeVeque
1983, "Algorithms for computing the sample variance"), in fp64: ranks' sums simply add up to those of all data.
"""

from __future__ import annotations

import torch
from rsl_rl.modules import EmpiricalNormalization


def advantage_moments(advantages: torch.Tensor) -> torch.Tensor:
    """Count, sum and sum of squares.

    Args:
        advantages: (rows, samples); each row is normalized by itself.

    Returns:
        (rows, 3) in fp64.
    """
    values = advantages.double()
    count = torch.full_like(values[:, 0], values.shape[1])
    return torch.stack([count, values.sum(dim=1), values.square().sum(dim=1)], dim=1)


def normalize(advantages: torch.Tensor, moments: torch.Tensor) -> torch.Tensor:
    """Give every row mean 0 and deviation 1, by moments that may be of more data than the row's.

    Args:
        advantages: (rows, samples).
        moments: (rows, 3), as :func:`advantage_moments` returns them, summed over ranks or not.

    Returns:
        The same shape and type. The deviation is Bessel's, with 1e-8 added, as rsl_rl has it.
    """
    count, total, squares = moments.unsqueeze(-1).unbind(dim=1)
    mean = total / count
    deviation = ((squares - count * mean.square()) / (count - 1)).clamp(min=0).sqrt()
    return ((advantages - mean) / (deviation + 1e-8)).to(advantages.dtype)


class ClippedNormalization(EmpiricalNormalization):
    """Normalizes observations, and clips what comes out."""

    def __init__(self, shape: tuple[int, ...], clip: float) -> None:
        """Start as rsl_rl's does.

        Args:
            shape: Of one observation.
            clip: Largest size of what comes out, in deviations.
        """
        super().__init__(shape)
        self.clip = clip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize and clip. TorchScript, by which policies are exported, knows no super()."""
        return ((x - self._mean) / (self._std + self.eps)).clamp(-self.clip, self.clip)


class NormalizerMoments:
    """What one observation normalizer has seen since ranks last agreed on its state, as sums that ranks can add.

    Deltas travel, not states: the observations from before are in every rank's state already, and must count once.

    Attributes:
        pending: (1 + 2 * width,) in fp64: count, sums of deviations from the agreed mean, sums of their squares.
    """

    def __init__(self, normalizer: EmpiricalNormalization) -> None:
        """Start from the normalizer's present state.

        Args:
            normalizer: The module whose buffers follow.
        """
        self._normalizer = normalizer
        self.rebase()

    def rebase(self) -> None:
        """Take the normalizer's present state, the same on every rank, as agreed."""
        state = {name: t.to(torch.float64, copy=True) for name, t in self._normalizer.state_dict().items()}
        self._count, self._mean, self._var = state["count"], state["_mean"].squeeze(0), state["_var"].squeeze(0)
        self.pending = torch.zeros(1 + 2 * len(self._mean), dtype=torch.float64, device=self._mean.device)

    def observe(self, observations: torch.Tensor) -> None:
        """Add observations to what is pending.

        Args:
            observations: (samples, width).
        """
        deviation = observations.double() - self._mean
        count = torch.full_like(self.pending[:1], len(deviation))
        self.pending += torch.cat([count, deviation.sum(dim=0), deviation.square().sum(dim=0)])

    def apply(self) -> None:
        """Put the agreed state and what is pending into the normalizer."""
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
    """The deviation of discounted sums of rewards, by which rewards are divided so that values stay near 1.

    As in Engstrom et al. 2020, "Implementation matters in deep policy gradients", arXiv:2005.12729, section 3, but with the
    deviation of all ranks' data, the present rollout included, for the whole of a rollout.

    Attributes:
        discounted: Each env's sum since its episode began, later rewards counting more, (num_envs,).
        pending: Count, sum and sum of squares of this rollout's sums, (3,) in fp64; to be added up over ranks.
        sums: The same of all rollouts and ranks, (3,) in fp64; equal on every rank.
    """

    def __init__(self, num_envs: int, gamma: float, device: str) -> None:
        """Start without data.

        Args:
            num_envs: Envs on this rank.
            gamma: Discount per control step.
            device: Where the tensors are.
        """
        self._gamma = gamma
        self.discounted = torch.zeros(num_envs, device=device)
        self.pending, self.sums = torch.zeros(2, 3, dtype=torch.float64, device=device)

    def observe(self, rewards: torch.Tensor, dones: torch.Tensor) -> None:
        """Count a step.

        Args:
            rewards: (num_envs,).
            dones: Envs whose episode ended with it, (num_envs,) of bool.
        """
        self.discounted.mul_(self._gamma).add_(rewards)
        values = self.discounted.double()
        self.pending += torch.stack([torch.full_like(values[0], len(values)), values.sum(), values.dot(values)])
        self.discounted.masked_fill_(dones, 0.0)

    def apply(self) -> torch.Tensor:
        """Take in what is pending, by now summed over ranks.

        Returns:
            One over the deviation, a scalar.
        """
        self.sums += self.pending
        self.pending.zero_()
        count, total, squares = self.sums
        variance = (squares / count - (total / count).square()).clamp(min=0)
        return (1.0 / (variance + 1e-8).sqrt()).to(self.discounted.dtype)
