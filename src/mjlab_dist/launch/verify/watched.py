"""Watch a runner while it trains: check its synchronizer, and count collectives (exchanges of data between ranks)."""

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
from mjlab_dist.learn.runner import Runner

# Substrings of the names of ProcessGroup's methods that communicate
COLLECTIVES = ("reduce", "gather", "broadcast", "scatter", "alltoall", "all_to_all", "barrier", "send", "recv")


class Collectives:
    """Counter of this process's collectives: calls of the process group's methods, and sums over local sockets."""

    def __init__(self) -> None:
        """Start to count. Counting ends with the process."""
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
    """A synchronizer that is compared with the mean over ranks, and whose collectives are counted.

    Attributes:
        keeps_equal: Value of this attribute of the watched synchronizer.
        difference: Largest relative difference between the first reduction and the mean over ranks. Differences of
            gradients are divided by the largest gradient. The difference of the KL divergence is divided by the mean
            KL divergence, or by ``desired_kl`` if this mean is smaller. None if ranks keep their own gradients.
        num_calls: Number of reductions so far.
        num_collectives: Number of collectives in these reductions.
    """

    def __init__(self, synchronizer: Synchronizer, collectives: Collectives, desired_kl: float) -> None:
        """Watch a synchronizer."""
        self.keeps_equal = synchronizer.keeps_equal
        self.difference: float | None = None
        self.num_calls = 0
        self.num_collectives = 0
        self._synchronizer = synchronizer
        self._collectives = collectives
        self._desired_kl = desired_kl

    def reduce(self, buffer: torch.Tensor) -> None:
        """Reduce the buffer. In the first call, also compare the result with the mean over ranks."""
        compares = self.keeps_equal and self.num_calls == 0
        own = buffer.clone() if compares else buffer
        before = self._collectives.count
        self._synchronizer.reduce(buffer)
        after = self._collectives.count
        self.num_collectives += after - before
        self.num_calls += 1
        if compares:
            self.difference = self._distance(buffer.double(), gather(own).double().mean(dim=0))
            self._collectives.count = after  # do not count the comparison's own collective

    def due(self, iteration: int) -> bool:
        """Return whether the watched synchronizer averages parameters after an iteration."""
        return self._synchronizer.due(iteration)

    def _distance(self, reduced: torch.Tensor, mean: torch.Tensor) -> float:
        apart = (reduced - mean).abs()
        scale = mean[:-1].abs().max() if len(mean) > 1 else mean.new_ones(())
        gradients = apart[:-1].max() / scale if len(mean) > 1 else mean.new_zeros(())
        # The KL divergence of the first mini-batch is nearly 0, so divide by at least the desired KL divergence.
        kl = apart[-1] / mean[-1].abs().clamp(min=self._desired_kl)
        return torch.maximum(gradients, kl).item()


class Watch(Hook):
    """Hook that watches a runner from its first iteration on."""

    def __init__(self, desired_kl: float) -> None:
        """Start to count collectives."""
        self._desired_kl = desired_kl
        self._collectives = Collectives()
        self._synchronizer: WatchedSynchronizer | None = None
        self._counts: list[tuple[int, int, int]] = []

    @property
    def difference(self) -> float | None:
        """See :class:`WatchedSynchronizer`; None before the first iteration."""
        return self._synchronizer.difference if self._synchronizer else None

    def before_iteration(self, runner: Runner, iteration: int) -> None:  # noqa: ARG002 (every hook takes it)
        """Watch the synchronizer from the first iteration on, and store the counts."""
        if self._synchronizer is None:
            self._synchronizer = WatchedSynchronizer(runner.alg.synchronizer, self._collectives, self._desired_kl)
            runner.alg.synchronizer = self._synchronizer
        watched = self._synchronizer
        self._counts.append((self._collectives.count, watched.num_collectives, watched.num_calls))

    def collectives(self) -> tuple[float, float]:
        """Return the collectives per mini-batch, and the other collectives per iteration.

        Collectives are counted from the start of the first iteration to the start of the last one.
        """
        total, reducing, calls = (end - start for start, end in zip(self._counts[0], self._counts[-1], strict=True))
        return reducing / calls, (total - reducing) / (len(self._counts) - 1)
