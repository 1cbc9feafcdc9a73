"""What has to hold where several ranks train, observed on real ranks. Ranks gather evidence, the launcher judges it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import DevicePlan, Rank
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import DesyncError
from mjlab_dist.worker import joined

if TYPE_CHECKING:
    import torch

    from mjlab_dist.env import Env
    from mjlab_dist.learn.watched import WatchedRunner

TOLERANCE = {"none": 1e-5, "bf16": 1e-2, "fp16": 1e-2}
"""Largest difference of the averaged gradient from the recomputed one, relative to the largest gradient, by number format."""

MOST_COLLECTIVES = 3
"""Collectives that an iteration may take beyond one per mini-batch."""


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


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank, for people."""

    rank: int
    """Global rank."""
    host: str
    """Name of the machine."""
    device: str
    """The device's UUID, or else torch's name of it; and its model."""
    memory_gb: int
    """All memory of the device, in GB of 10^9 bytes."""
    env_ids: str
    """First and last env of the rank."""
    seed: int
    """What the rank seeded itself with."""
    egl_device: str | None
    """MUJOCO_EGL_DEVICE_ID; None where that is not set."""
    rank_time_s: float
    """Median seconds of an iteration after the first, without waiting for others."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that has to hold."""

    name: str
    """What it is."""
    figure: str
    """What was seen."""
    passed: bool
    """Whether it holds."""
    why: str = ""
    """What is wrong, or how to look at it, where it does not hold."""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """All ranks and all checks."""

    ranks: list[RankRow]
    """In order of rank."""
    checks: list[Check]
    """In order of importance."""

    @property
    def passed(self) -> bool:
        """Whether everything holds."""
        return all(check.passed for check in self.checks)


def verify_rank(config: TrainConfig, plan: DevicePlan, run_dir: Path, control: Control) -> Evidence:
    """Train on this rank, and watch.

    Args:
        config: The run's config, of two iterations or more.
        plan: Devices of this machine's ranks.
        run_dir: The run directory.
        control: Is told of progress, and asked whether to stop.
    """
    with _Written(run_dir) as written, joined(config, plan, run_dir, _watched_runner) as learner:
        runner = learner.runner
        first = _digest_rows(runner.env.get_observations()["actor"])
        with contextlib.suppress(DesyncError):  # raised on every rank; the digests below say more
            runner.train(control)
        from mjlab_dist.learn.ppo import flatten  # noqa: PLC0415

        digests = {name: _digest(tensor) for name, tensor in flatten(runner.alg.save()).items()}
    per_mini_batch, per_iteration = runner.collectives()
    return Evidence(
        info=learner.info,
        first_observations=first,
        digests=digests,
        difference=runner.synchronizer.difference,
        written=sorted(written.names),
        per_mini_batch=per_mini_batch,
        per_iteration=per_iteration,
        own_s=statistics.median(runner.own_s[1:]),
    )


def judge(config: TrainConfig, evidence: Sequence[Evidence], speed: float, speed_of_one: float | None) -> VerifyReport:
    """Draw conclusions.

    Args:
        config: The run's config.
        evidence: Of every rank, in order of rank.
        speed: Steps per second of all ranks.
        speed_of_one: Steps per second of a single rank with as many envs as each of them; None where there is one rank only.
    """
    return VerifyReport(
        ranks=[_row(one) for one in evidence],
        checks=[
            _parameters_equal(evidence),
            _streams_different(evidence),
            _gradient_average(config, evidence),
            _files_of_rank_0(evidence),
            _collectives(config, evidence),
            _scaling(len(evidence), speed, speed_of_one),
        ],
    )


def _row(evidence: Evidence) -> RankRow:
    info = evidence.info
    return RankRow(
        rank=info.rank,
        host=info.host,
        device=f"{info.visible or info.device}, {info.name}",
        memory_gb=info.memory_gb,
        env_ids=f"{info.first_env_id} to {info.first_env_id + info.num_envs - 1}",
        seed=info.seed,
        egl_device=info.egl_device,
        rank_time_s=evidence.own_s,
    )


def _parameters_equal(evidence: Sequence[Evidence]) -> Check:
    name = "parameters equal"
    names = list(evidence[0].digests)
    differing = [n for n in names if len({one.digests[n] for one in evidence}) > 1]
    if not differing:
        return _check(name, f"{len(names)} tensors, bit by bit", True)
    return _check(name, f"{len(differing)} of {len(names)} tensors differ", False, f"the first is {differing[0]}")


def _streams_different(evidence: Sequence[Evidence]) -> Check:
    rows = [row for one in evidence for row in one.first_observations]
    distinct = len(set(rows))
    return _check(
        "env streams different",
        f"{distinct:,} different first observations of {len(rows):,}",
        distinct == len(rows),
        "envs start alike: ranks draw the same numbers, or the task's events draw none",
    )


def _gradient_average(config: TrainConfig, evidence: Sequence[Evidence]) -> Check:
    name = "gradient average"
    differences = [one.difference for one in evidence if one.difference is not None]
    if not differences:
        how = f"period {config.sync.period}" if config.sync.synchronizer is None else config.sync.synchronizer
        return _check(name, f"not averaged: {how}", True)
    largest, allowed = max(differences), TOLERANCE[config.sync.compression]
    return _check(
        name,
        f"differs by {largest:.1e} from the mean over ranks",
        largest <= allowed,
        f"more than {allowed:g} of the largest gradient",
    )


def _files_of_rank_0(evidence: Sequence[Evidence]) -> Check:
    others = [path for one in evidence[1:] for path in one.written]
    counts = ", ".join(f"rank {rank}: {len(one.written)}" for rank, one in enumerate(evidence))
    why = f"another rank wrote {others[0]}" if others else "rank 0 wrote none"
    return _check("files by rank 0 alone", counts, bool(evidence[0].written) and not others, why)


def _collectives(config: TrainConfig, evidence: Sequence[Evidence]) -> Check:
    per_mini_batch = max(one.per_mini_batch for one in evidence)
    per_iteration = max(one.per_iteration for one in evidence)
    if len(evidence) == 1:
        passed = per_mini_batch == per_iteration == 0
    elif config.sync.period == 1 and config.sync.synchronizer is None and config.fsdp_devices == 1:
        passed = per_mini_batch == 1 and per_iteration <= MOST_COLLECTIVES
    else:
        passed = True  # as many as the chosen synchronisation takes
    return _check(
        "collectives",
        f"{per_mini_batch:g} per mini-batch, {per_iteration:g} more per iteration",
        passed,
        f"1 per mini-batch and up to {MOST_COLLECTIVES} more per iteration are enough; one rank needs none",
    )


def _scaling(num_ranks: int, speed: float, speed_of_one: float | None) -> Check:
    name = "scaling against one rank"
    if speed_of_one is None:
        return _check(name, f"one rank: {speed:,.0f} steps/s", True)
    factor = speed / speed_of_one
    return _check(
        name,
        f"{factor:.2f}x of {num_ranks}: {speed:,.0f} against {speed_of_one:,.0f} steps/s",
        factor > 1,
        "ranks slow each other down: they share a device or cores, or something else runs on this machine",
    )


def _check(name: str, figure: str, passed: bool, why: str = "") -> Check:
    return Check(name=name, figure=figure, passed=passed, why="" if passed else why)


def _watched_runner(env: Env, config: TrainConfig, rank: Rank, run_dir: Path) -> WatchedRunner:
    from mjlab_dist.learn.watched import WatchedRunner  # noqa: PLC0415 (imports torch)

    return WatchedRunner(env, config, rank, run_dir)


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
