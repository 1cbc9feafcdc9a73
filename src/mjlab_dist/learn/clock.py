"""Timestamps on the device's stream, without waiting for the device: host time on the CPU, CUDA events on a GPU."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

# A timestamp: host seconds, or an event in the device's stream
Mark = float | torch.cuda.Event


class Clock:
    """Records timestamps, and sums the time that this rank spends in collectives (operations that all ranks join).

    Attributes:
        last_waits_s: Seconds of each collective that the last call of :meth:`pop_wait_s` counted.
    """

    def __init__(self, device: str) -> None:
        """Create a clock that has counted no collectives."""
        self._on_gpu = device != "cpu"
        self._waits: list[tuple[Mark, Mark]] = []
        self.last_waits_s: list[float] = []

    def mark(self) -> Mark:
        """Record a timestamp on the device's stream."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two timestamps; on a GPU, the device must already have reached both."""
        if isinstance(start, float) and isinstance(end, float):
            return end - start
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1000

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside a ``with`` block as waiting for other ranks."""
        start = self.mark()
        yield
        self._waits.append((start, self.mark()))

    def pop_wait_s(self) -> float:
        """Return the seconds waited since the last call. On a GPU, wait for the device before calling this."""
        self.last_waits_s = [self.seconds(start, end) for start, end in self._waits]
        self._waits.clear()
        return sum(self.last_waits_s)
