"""Evidence that each rank gathers about itself during a short training run, and the judgement of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankPlan
from mjlab_dist.distributed.exchange import RankInfo
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import DesyncError
from mjlab_dist.launch.worker import joined
from mjlab_dist.runs.run_dir import ERRORS_DIR

if TYPE_CHECKING:
    import torch

# Maximum allowed WatchedSynchronizer.difference, for each number format of --sync.compression
TOLERANCE = {"none": 1e-5, "bf16": 1e-2, "fp16": 1e-2}

# Maximum number of collectives (exchanges between all ranks) per iteration, in addition to one per mini-batch
MAX_COLLECTIVES = 3


@dataclass(frozen=True, kw_only=True)
class IterationTimes:
    """Times of one iteration of one rank, in s. Computing times do not include collectives."""

    # From the start of the iteration to the start of the next one
    wall_s: float
    # Physics
    physics_s: float
    # Control steps without the physics
    env_s: float
    # The rest of the rollout: actions of the policy, storing the samples
    policy_s: float
    # Returns, advantages and mini-batches
    update_s: float
    # Time of each collective (exchange of data between all ranks), from this rank's arrival to the end of the
    # collective. All ranks call the collectives in the order of this list.
    waits_s: list[float]


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
    # Number of collectives per mini-batch
    per_mini_batch: float
    # Number of other collectives per iteration
    per_iteration: float
    # All iterations but the last one
    iterations: list[IterationTimes]
    # Memory in use at the end, in MB (10^6 bytes): of the GPU, or of this process on a CPU
    memory_mb: float


def verify_rank(config: TrainConfig, plan: RankPlan, control: Control) -> Evidence:
    """Train on this rank and gather evidence."""
    with _Written(plan.run_dir) as written, joined(config, plan) as learner:
        import torch

        from mjlab_dist.launch.verify.timing import Timing, Watch
        from mjlab_dist.learn.learner import flatten
        from mjlab_dist.learn.metrics import memory_mb

        # Train, and watch the training
        runner, watch, timing = learner.runner, Watch(), Timing(config.agent.num_steps_per_env)
        runner.hooks += [watch, timing]
        first = _digest_rows(runner.env.get_observations()["actor"])
        with contextlib.suppress(DesyncError):  # raised on every rank; the digests show what differs
            runner.train(control)
        digests = {name: _digest(tensor) for name, tensor in flatten(runner.alg.save()).items()}
        iterations = timing.iterations(runner)
        memory = memory_mb(torch.device(runner.env.device))
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
        iterations=iterations,
        memory_mb=memory,
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


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check."""

    name: str
    # Measured result
    figure: str
    passed: bool
    # Explanation of a failure; empty if the check passed
    why: str = ""


def judge(config: TrainConfig, evidence: Sequence[Evidence]) -> list[Check]:
    """Check the evidence of all ranks of a run, the most important things first."""
    return [
        _parameters_equal(evidence),
        _streams_different(evidence),
        _gradient_average(config, evidence),
        _files_of_rank_0(evidence),
        _collectives(config, evidence),
    ]


def _parameters_equal(evidence: Sequence[Evidence]) -> Check:
    name = "parameters equal"
    names = list(evidence[0].digests)
    differing = [n for n in names if len({one.digests[n] for one in evidence}) > 1]
    if not differing:
        return _check(name, f"{len(names)} tensors are equal bit for bit", True)
    return _check(name, f"{len(differing)} of {len(names)} tensors differ", False, f"the first one is {differing[0]}")


def _streams_different(evidence: Sequence[Evidence]) -> Check:
    rows = [row for one in evidence for row in one.first_observations]
    distinct = len(set(rows))
    return _check(
        "env streams different",
        f"{distinct:,} of {len(rows):,} first observations are different",
        distinct == len(rows),
        "envs start in equal states: ranks use the same random numbers, or the task's events use none",
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
        f"relative difference of {largest:.1e} from the mean over ranks",
        largest <= allowed,
        f"more than the allowed {allowed:g}",
    )


def _files_of_rank_0(evidence: Sequence[Evidence]) -> Check:
    others = [path for one in evidence[1:] for path in one.written]
    counts = ", ".join(f"rank {rank}: {len(one.written)}" for rank, one in enumerate(evidence))
    why = f"another rank wrote {others[0]}" if others else "rank 0 wrote no files"
    return _check("files by rank 0 alone", counts, bool(evidence[0].written) and not others, why)


def _collectives(config: TrainConfig, evidence: Sequence[Evidence]) -> Check:
    per_mini_batch = max(one.per_mini_batch for one in evidence)
    per_iteration = max(one.per_iteration for one in evidence)
    if len(evidence) == 1:
        passed = per_mini_batch == per_iteration == 0
    elif config.sync.period == 1 and config.sync.synchronizer is None and config.fsdp_devices == 1:
        passed = per_mini_batch == 1 and per_iteration <= MAX_COLLECTIVES
    else:
        passed = True  # any number passes, because it depends on the synchronizer and on sharding
    return _check(
        "collectives",
        f"{per_mini_batch:g} per mini-batch, {per_iteration:g} more per iteration",
        passed,
        f"1 per mini-batch and up to {MAX_COLLECTIVES} more per iteration are enough; one rank needs none",
    )


def _check(name: str, figure: str, passed: bool, why: str = "") -> Check:
    return Check(name=name, figure=figure, passed=passed, why="" if passed else why)
