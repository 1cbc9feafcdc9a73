"""Launch ranks that run a function of a test and save the function's results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.distributed import RankDevice, RankPlan
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.launch.worker import Entry
from mjlab_dist.runs.run_dir import ERRORS_DIR


@dataclass(frozen=True)
class Saved:
    """File with the results of a rank."""

    file: Path

    @classmethod
    def of(cls, plan: RankPlan, rank: int, results: dict[str, Any]) -> Saved:
        """Save the results of a rank."""
        file = plan.run_dir / f"results_{rank}.pt"
        torch.save(results, file)
        return cls(file)


def results_of(
    entry: Entry[Saved], directory: Path, config: TrainConfig | None = None, *, ranks: int, torch_threads: int = 1
) -> list[dict[str, Any]]:
    """Start CPU ranks, and return their results."""
    (directory / ERRORS_DIR).mkdir()
    device = RankDevice(device="cpu", name="cpu", torch_threads=torch_threads, backend="gloo")
    plan = RunPlan(hosts=(Host(devices=(device,) * ranks),), run_dir=directory)
    config = config or registry.task_config("cartpole-balance")
    saved = run_ranks(entry, Saved, config, plan, listen=lambda _: None, control=Control())
    return [torch.load(one.file, weights_only=True) for one in saved]
