"""Faults of ranks, injected by a synchronizer: a class of the user, which each of several ranks creates."""

from __future__ import annotations

import functools
import inspect
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from mjlab_dist.distributed.synchronizer import AllReduce

if TYPE_CHECKING:
    from mjlab_dist.learn.runner import Runner

FILE = Path("faults")
"""File in the run's working directory. It has a line per attempt, which is removed when the fault happens."""

SLOW_S = 5.0


def faults(cwd: Path, *lines: str) -> tuple[str, str]:
    """Return flags of ``train`` for faults ``<rank>:<iteration>:<kind>``: the first for the first attempt, and so on.

    Args:
        cwd: Working directory of the run.
        lines: Faults. An attempt that starts after its fault's iteration has it in its first iteration. Kinds are
            raise, exit (without a report), slow, nan (a velocity in the physics of one env), corrupt (one bit of a
            weight flips), skip_collective (one gradient reduction), sigkill and sigstop.
    """
    (cwd / FILE).write_text("\n".join(lines))
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # restored after the test
    return ("--sync.synchronizer", "fault_injection:Faulty")


class Faulty(AllReduce):
    """Injects the first fault of the file when its iteration begins."""

    def __init__(self) -> None:
        super().__init__()
        self._skips = False
        self._fault = FILE.read_text().partition("\n")[0].split(":")
        if self._fault[0] == str(dist.get_rank()):
            from mjlab_dist.learn.runner import (
                Hook,
                Runner,  # not in the launcher, which also imports this module
            )

            # Hooks are not open to users' code
            train, hook = inspect.unwrap(Runner.train), Hook()
            hook.before_iteration = self.before_iteration

            @functools.wraps(train)
            def train_with_fault(runner: Runner, *args: Any) -> Any:
                runner.hooks.append(hook)
                return train(runner, *args)

            Runner.train = train_with_fault  # pyright: ignore[reportAttributeAccessIssue]

    def reduce(self, buffer: torch.Tensor) -> None:
        if not self._skips:
            super().reduce(buffer)
        self._skips = False

    def before_iteration(self, runner: Runner, iteration: int) -> None:
        if not self._fault or iteration < int(self._fault[1]):
            return
        kind, self._fault = self._fault[2], []
        FILE.write_text(FILE.read_text().partition("\n")[2])
        match kind:
            case "raise":
                raise RuntimeError("injected fault")
            case "exit":
                os._exit(7)
            case "slow":
                time.sleep(SLOW_S)
            case "skip_collective":
                self._skips = True
            case "corrupt":
                weight = next(runner.alg.networks["actor"].parameters())
                with torch.no_grad():
                    weight.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 12)
            case "nan":
                sim, step = runner.env.sim, runner.env.sim.step

                def step_into_nan() -> None:
                    step()
                    sim.qvel[0, 0] = math.nan
                    sim.step = step

                sim.step = step_into_nan
            case _:
                os.kill(os.getpid(), signal.Signals[kind.upper()])
