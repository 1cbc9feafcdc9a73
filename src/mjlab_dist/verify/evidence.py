"""Evidence that each rank gathers about itself during a short training run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import DesyncError
from mjlab_dist.run_dir import ERRORS_DIR
from mjlab_dist.worker import joined

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Evidence of one rank."""

    # The rank, its host and its device
    info: RankInfo
    # Digest of each env's first observation
    first_observations: list[str]
    # Digest of each tensor of policy, value function, normalizers and optimizer after the last iteration, by name
    digests: dict[str, str]
    # See WatchedSynchronizer
    difference: float | None
    # Files and directories that this rank wrote, relative to the run directory
    written: list[str]
    # Number of collectives (exchanges of data between all ranks) per mini-batch
    per_mini_batch: float
    # Number of other collectives per iteration
    per_iteration: float
    # Median time of an iteration in s, without the first iteration and without the time spent waiting for others
    own_s: float


def verify_rank(config: TrainConfig, plan: RankPlan, control: Control) -> Evidence:
    """Train on this rank and gather evidence."""
    with _Written(plan.run_dir) as written, joined(config, plan) as learner:
        from mjlab_dist.verify.watched import Watch  # imports torch

        # Train, and watch the training
        runner, watch = learner.runner, Watch(config.agent.desired_kl)
        runner.hooks.append(watch)
        first = _digest_rows(runner.env.get_observations()["actor"])
        with contextlib.suppress(DesyncError):  # raised on every rank; the digests show what differs
            runner.train(control)
        from mjlab_dist.learn.ppo import flatten

        digests = {name: _digest(tensor) for name, tensor in flatten(runner.alg.save()).items()}
    # Collect the evidence
    per_mini_batch, per_iteration = watch.collectives()
    return Evidence(
        info=learner.info,
        first_observations=first,
        digests=digests,
        difference=watch.difference,
        written=sorted(written.names),
        per_mini_batch=per_mini_batch,
        per_iteration=per_iteration,
        own_s=statistics.median(watch.own_s[1:]),
    )


def _digest_rows(observations: torch.Tensor) -> list[str]:
    rows = observations.cpu().numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in rows]


def _digest(tensor: torch.Tensor) -> str:
    import torch

    return hashlib.sha256(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


class _Written:
    """Context manager that records, from Python's audit events, which files this process writes below a directory."""

    def __init__(self, directory: Path) -> None:
        self.names: set[str] = set()
        self._root = os.path.realpath(directory) + os.sep
        self._is_open = False

    def __enter__(self) -> _Written:
        self._is_open = True
        sys.addaudithook(self._record)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_open = False  # audit hooks cannot be removed

    def _record(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_open:
            return
        if (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or event == "os.mkdir":
            self._add(args[0])
        elif event == "os.rename":
            self.names.discard(self._name(args[0]))
            self._add(args[1])

    def _add(self, path: Any) -> None:
        name = self._name(path)
        if name and not name.startswith(ERRORS_DIR):
            self.names.add(name)

    def _name(self, path: Any) -> str:
        """Return the path relative to the directory; empty for paths outside of it and for file descriptors."""
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        full = os.path.realpath(os.fsdecode(path))
        return full.removeprefix(self._root) if full.startswith(self._root) else ""
