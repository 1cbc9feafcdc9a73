"""The copies of the learner on all ranks: their average where every rank trains its own copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mjlab_dist.distributed.group import sum_over_ranks, world_size
from mjlab_dist.learn.clock import Clock
from mjlab_dist.learn.moments import NormalizerMoments
from mjlab_dist.learn.optimizer import Adam

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's state of a parameter, without the number of its steps, which is the same on all ranks."""


class Replicas:
    """This rank's copy of the learner, among those of the other ranks."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        optimizer: Adam,
        rate: torch.Tensor,
        normalizers: Mapping[str, NormalizerMoments],
        clock: Clock,
    ) -> None:
        """Store references to what a learner consists of.

        Args:
            parameters: Parameters of policy and value function.
            optimizer: Updates them.
            rate: The learning rate, a scalar.
            normalizers: Moments of the observations, by network.
            clock: Counts the time spent in collectives.
        """
        self._parameters = parameters
        self._optimizer = optimizer
        self._rate = rate
        self._normalizers = normalizers
        self._clock = clock

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sum tensors of one dtype over ranks, in place, in one collective."""
        if not tensors or world_size() == 1:
            return
        with self._clock.waiting():
            total = sum_over_ranks(torch.cat([t.flatten() for t in tensors]))
        for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def average(self) -> torch.Tensor:
        """Average parameters, Adam's moments and learning rates over ranks, and merge their observation moments.

        Returns:
            Sum over parameters of this rank's squared distances from the mean, a scalar.
        """
        before = torch.cat([p.detach().flatten() for p in self._parameters])
        # Parameters, Adam's moments, learning rate
        tensors = list(self._averaged().values())
        for tensor in tensors:
            tensor.div_(world_size())
        self.sum(tensors)
        # Observation normalizers
        self.sum([moments.pending for moments in self._normalizers.values()])
        for normalizer in self._normalizers.values():
            normalizer.apply()
            normalizer.rebase()
        return (before - torch.cat([p.detach().flatten() for p in self._parameters])).square().sum()

    def own(self) -> dict[str, torch.Tensor]:
        """Return copies of all tensors that differ between ranks since the last average, by name."""
        return {name: tensor.clone() for name, tensor in self._differing().items()}

    def restore(self, own: Mapping[str, torch.Tensor]) -> None:
        """Overwrite this rank's tensors.

        Args:
            own: Result of :meth:`own`, on any device.
        """
        for name, tensor in self._differing().items():
            tensor.copy_(own[name])

    def _averaged(self) -> dict[str, torch.Tensor]:
        moments = [state[key] for state in self._optimizer.state.values() for key in MOMENTS]
        return {
            **{f"parameter/{i}": p.detach() for i, p in enumerate(self._parameters)},
            **{f"moment/{i}": moment for i, moment in enumerate(moments)},
            "learning_rate": self._rate,
        }

    def _differing(self) -> dict[str, torch.Tensor]:
        normalizers = {
            f"{network}/{name}": tensor
            for network, moments in self._normalizers.items()
            for name, tensor in moments.state().items()
        }
        return {**self._averaged(), **normalizers}
