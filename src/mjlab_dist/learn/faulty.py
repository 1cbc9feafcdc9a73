"""A runner in which something goes wrong on purpose: see :mod:`mjlab_dist.faults`."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from mjlab_dist.distributed.synchronizer import Synchronizer
from mjlab_dist.faults import Fault
from mjlab_dist.learn.metrics import Sample
from mjlab_dist.learn.runner import Runner

SLOW_S = 5.0
"""Seconds that a slow iteration takes longer."""


class _SkipsOnce:
    """Leaves the first reduction out."""

    def __init__(self, synchronizer: Synchronizer) -> None:
        self.keeps_equal = synchronizer.keeps_equal
        self.due = synchronizer.due
        self._synchronizer = synchronizer
        self._skipped = False

    def reduce(self, buffer: torch.Tensor) -> None:
        if self._skipped:
            self._synchronizer.reduce(buffer)
        self._skipped = True


class FaultyRunner(Runner):
    """Trains as :class:`~mjlab_dist.learn.Runner` does, until the fault."""

    def __init__(self, *args: Any, fault: Fault) -> None:
        """As the runner's.

        Args:
            args: The runner's.
            fault: What happens, and when. Its rank is this one.
        """
        super().__init__(*args)
        self._fault: Fault | None = fault

    def _iteration(self, obs: TensorDict, iteration: int, saves: bool) -> tuple[TensorDict, Sample]:
        fault = self._fault
        if fault is not None and iteration >= fault.iteration:
            self._fault = None
            self._faults[fault.kind](self)
        return super()._iteration(obs, iteration, saves)

    def _raise(self) -> None:
        raise RuntimeError("a fault on purpose")

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def _exit(self) -> None:
        os._exit(7)

    def _skip_collective(self) -> None:
        self.alg.synchronizer = _SkipsOnce(self.alg.synchronizer)

    def _nan(self) -> None:
        sim, step = self.env.sim, self.env.sim.step

        def step_into_nan() -> None:
            step()
            sim.qvel[0, 0] = math.nan
            sim.step = step

        sim.step = step_into_nan

    def _corrupt(self) -> None:
        weight = next(self.alg.actor.parameters())
        with torch.no_grad():
            weight.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 12)

    def _slow(self) -> None:
        time.sleep(SLOW_S)

    _faults: dict[str, Callable[[FaultyRunner], None]] = {  # noqa: RUF012 (never changed)
        "raise": _raise,
        "sigkill": _kill,
        "sigstop": _freeze,
        "exit": _exit,
        "skip_collective": _skip_collective,
        "nan": _nan,
        "corrupt": _corrupt,
        "slow": _slow,
    }
