"""Evidence that each rank gathers about itself during a short training run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankPlan
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.errors import DesyncError
from mjlab_dist.launch.worker import joined
from mjlab_dist.runs.run_dir import ERRORS_DIR

if TYPE_CHECKING:
    import torch


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

        from mjlab_dist.launch.verify.timing import Timing
        from mjlab_dist.launch.verify.watched import Watch
        from mjlab_dist.learn.metrics import memory_mb
        from mjlab_dist.learn.ppo import flatten

        # Train, and watch the training
        runner, watch, timing = learner.runner, Watch(config.agent.desired_kl), Timing(config.agent.num_steps_per_env)
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
