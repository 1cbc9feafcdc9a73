"""Watch a runner while it trains: what its synchronizer does, and how many collectives an iteration takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from mjlab_dist.distributed.group import gather
from mjlab_dist.distributed.local_sum import LocalSum
from mjlab_dist.distributed.synchronizer import Synchronizer
from mjlab_dist.learn.hooks import Hook
from mjlab_dist.learn.metrics import Sample
from mjlab_dist.learn.runner import Runner

COLLECTIVES = ("reduce", "gather", "broadcast", "scatter", "alltoall", "all_to_all", "barrier", "send", "recv")
"""Parts of the names of ProcessGroup's methods that talk to other ranks."""


class Collectives:
    """Counts this process's collectives, where torch.distributed's functions hand them to the process group, and local sums.

    Attributes:
        count: Collectives so far.
    """

    def __init__(self) -> None:
        """Start with none, and count until the process ends."""
        self.count = 0
        for name in dir(dist.ProcessGroup):
            if any(part in name for part in COLLECTIVES) and not name.startswith("__"):
                setattr(dist.ProcessGroup, name, self._counted(getattr(dist.ProcessGroup, name)))
        LocalSum.sum_ = self._counted(LocalSum.sum_)

    def _counted(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def count(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return collective(*args, **kwargs)

        return count


class WatchedSynchronizer:
    """Compares the first reduction with the mean over ranks, and counts collectives within reductions.

    Attributes:
        keeps_equal: As the synchronizer's.
        difference: Largest difference of the first reduction from the mean over ranks, relative to the largest gradient, or for
            the KL divergence to the one that is aimed at; None where the synchronizer leaves gradients to every rank.
        num_calls: Reductions so far.
        num_collectives: Collectives within them.
    """

    def __init__(self, synchronizer: Synchronizer, collectives: Collectives, desired_kl: float) -> None:
        """Watch a synchronizer.

        Args:
            synchronizer: Does the work.
            collectives: Counts.
            desired_kl: KL divergence per update that the learning rate's schedule aims at.
        """
        self.keeps_equal = synchronizer.keeps_equal
        self.difference: float | None = None
        self.num_calls = 0
        self.num_collectives = 0
        self._synchronizer = synchronizer
        self._collectives = collectives
        self._desired_kl = desired_kl

    def reduce(self, buffer: torch.Tensor) -> None:
        """As the synchronizer's."""
        compares = self.keeps_equal and self.num_calls == 0
        own = buffer.clone() if compares else buffer
        before = self._collectives.count
        self._synchronizer.reduce(buffer)
        after = self._collectives.count
        self.num_collectives += after - before
        self.num_calls += 1
        if compares:
            self.difference = self._distance(buffer.double(), gather(own).double().mean(dim=0))
            self._collectives.count = after  # the comparison's own does not count

    def due(self, iteration: int) -> bool:
        """As the synchronizer's."""
        return self._synchronizer.due(iteration)

    def _distance(self, reduced: torch.Tensor, mean: torch.Tensor) -> float:
        apart = (reduced - mean).abs()
        scale = mean[:-1].abs().max() if len(mean) > 1 else mean.new_ones(())
        gradients = apart[:-1].max() / scale if len(mean) > 1 else mean.new_zeros(())
        # The divergence of the first mini-batch is nearly 0: what it is compared with is what the schedule looks at.
        kl = apart[-1] / mean[-1].abs().clamp(min=self._desired_kl)
        return torch.maximum(gradients, kl).item()


class Watch(Hook):
    """Watches a runner from its first iteration on.

    Attributes:
        difference: See :class:`WatchedSynchronizer`.
        own_s: Seconds of each iteration, without the time that this rank waited for others.
    """

    def __init__(self, desired_kl: float) -> None:
        """Watch nothing yet.

        Args:
            desired_kl: KL divergence per update that the learning rate's schedule aims at.
        """
        self._desired_kl = desired_kl
        self._collectives = Collectives()
        self._synchronizer: WatchedSynchronizer | None = None
        self.own_s: list[float] = []
        self._counts: list[tuple[int, int, int]] = []

    @property
    def difference(self) -> float | None:
        """See :class:`WatchedSynchronizer`; None before the first iteration."""
        return self._synchronizer.difference if self._synchronizer else None

    def before_iteration(self, runner: Runner, iteration: int) -> None:  # noqa: ARG002 (every hook takes it)
        """Watch the synchronizer from the first iteration on, and note the counts."""
        if self._synchronizer is None:
            self._synchronizer = WatchedSynchronizer(runner.alg.synchronizer, self._collectives, self._desired_kl)
            runner.alg.synchronizer = self._synchronizer
        watched = self._synchronizer
        self._counts.append((self._collectives.count, watched.num_collectives, watched.num_calls))

    def after_iteration(self, runner: Runner, iteration: int, sample: Sample) -> None:  # noqa: ARG002
        """Note the time of the iteration."""
        self.own_s.append(sample.collect_s + sample.learn_s - sample.wait_s)

    def collectives(self) -> tuple[float, float]:
        """Collectives per mini-batch, and per iteration beyond those, from the first iteration's beginning to the last one's."""
        total, reducing, calls = (end - start for start, end in zip(self._counts[0], self._counts[-1], strict=True))
        return reducing / calls, (total - reducing) / (len(self._counts) - 1)
