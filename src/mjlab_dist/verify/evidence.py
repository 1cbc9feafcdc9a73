"""What each rank observes of itself while it trains for a few iterations."""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import DesyncError
from mjlab_dist.worker import joined

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one rank observed of itself."""

    info: RankInfo
    """Who and where it is."""
    first_observations: list[str]
    """A digest of each env's first observation."""
    digests: dict[str, str]
    """A digest of each tensor of policy, value, normalizers and optimizer after the last iteration, by name."""
    difference: float | None
    """See :class:`~mjlab_dist.learn.watched.WatchedSynchronizer`."""
    written: list[str]
    """Files and directories that this rank wrote, relative to the run directory."""
    per_mini_batch: float
    """Collectives per mini-batch."""
    per_iteration: float
    """Collectives per iteration beyond those."""
    own_s: float
    """Median seconds of an iteration after the first, without waiting for others."""


def verify_rank(config: TrainConfig, plan: RankPlan, control: Control) -> Evidence:
    """Train on this rank, and watch.

    Args:
        config: The run's config, of two iterations or more.
        plan: Device, budget and run directory.
        control: Is told of progress, and asked whether to stop.
    """
    with _Written(plan.run_dir) as written, joined(config, plan) as learner:
        from mjlab_dist.verify.watched import Watch  # noqa: PLC0415 (imports torch)

        runner, watch = learner.runner, Watch(config.agent.desired_kl)
        runner.hooks.append(watch)
        first = _digest_rows(runner.env.get_observations()["actor"])
        with contextlib.suppress(DesyncError):  # raised on every rank; the digests below say more
            runner.train(control)
        from mjlab_dist.learn.ppo import flatten  # noqa: PLC0415

        digests = {name: _digest(tensor) for name, tensor in flatten(runner.alg.save()).items()}
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
    """Names of what this process writes below a directory while the context is open, as Python's audit events tell.

    Attributes:
        names: Files and directories, relative to the directory.
    """

    def __init__(self, directory: Path) -> None:
        self.names: set[str] = set()
        self._root = os.path.realpath(directory) + os.sep
        self._listens = False

    def __enter__(self) -> _Written:
        self._listens = True
        sys.addaudithook(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        self._listens = False  # an audit hook cannot be taken away

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._listens:
            return
        if (event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) or event == "os.mkdir":
            self._add(args[0])
        elif event == "os.rename":
            self.names.discard(self._name(args[0]))
            self._add(args[1])

    def _add(self, path: Any) -> None:
        name = self._name(path)
        if name and not name.startswith(runs.ERRORS):
            self.names.add(name)

    def _name(self, path: Any) -> str:
        """The name below the directory, empty elsewhere; open descriptors count as elsewhere."""
        if not isinstance(path, str | bytes | os.PathLike):
            return ""
        full = os.path.realpath(os.fsdecode(path))
        return full.removeprefix(self._root) if full.startswith(self._root) else ""
