"""Fault injection in the training loop: see :mod:`mjlab_dist.faults`."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable

import torch

from mjlab_dist.distributed.synchronizer import Synchronizer
from mjlab_dist.faults import Fault, Kind
from mjlab_dist.learn.hooks import Hook
from mjlab_dist.learn.runner import Runner

SLOW_S = 5.0
"""Seconds that the fault slow adds to an iteration."""


class _SkipsOnce:
    """A synchronizer that skips its first reduction."""

    def __init__(self, synchronizer: Synchronizer) -> None:
        self.keeps_equal = synchronizer.keeps_equal
        self.due = synchronizer.due
        self._synchronizer = synchronizer
        self._skipped = False

    def reduce(self, buffer: torch.Tensor) -> None:
        if self._skipped:
            self._synchronizer.reduce(buffer)
        self._skipped = True


class FaultInjection(Hook):
    """Injects one fault."""

    def __init__(self, fault: Fault) -> None:
        self._fault: Fault | None = fault

    def before_iteration(self, runner: Runner, iteration: int) -> None:
        """Inject the fault when its iteration begins."""
        fault = self._fault
        if fault is not None and iteration >= fault.iteration:
            self._fault = None
            _FAULTS[fault.kind](runner)


def _raise(_: Runner) -> None:
    raise RuntimeError("injected fault")


def _kill(_: Runner) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze(_: Runner) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit(_: Runner) -> None:
    os._exit(7)


def _skip_collective(runner: Runner) -> None:
    runner.alg.synchronizer = _SkipsOnce(runner.alg.synchronizer)


def _nan(runner: Runner) -> None:
    sim, step = runner.env.sim, runner.env.sim.step

    def step_into_nan() -> None:
        step()
        sim.qvel[0, 0] = math.nan
        sim.step = step

    sim.step = step_into_nan


def _corrupt(runner: Runner) -> None:
    weight = next(runner.alg.actor.parameters())
    with torch.no_grad():
        weight.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 12)


def _slow(_: Runner) -> None:
    time.sleep(SLOW_S)


_FAULTS: dict[Kind, Callable[[Runner], None]] = {
    "raise": _raise,
    "sigkill": _kill,
    "sigstop": _freeze,
    "exit": _exit,
    "skip_collective": _skip_collective,
    "nan": _nan,
    "corrupt": _corrupt,
    "slow": _slow,
}
