"""Invented evidence of ranks, for tests of what `mjlab-dist verify` concludes from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from mjlab_dist.distributed.exchange import DeviceInfo, RankInfo
from mjlab_dist.launch.verify.evidence import Evidence, IterationTimes


def times(physics_s: float = 0.4, waits_s: list[float] | None = None) -> IterationTimes:
    """Return the times of an iteration of one second."""
    return IterationTimes(wall_s=1.0, physics_s=physics_s, env_s=0.1, policy_s=0.1, update_s=0.2, waits_s=waits_s or [])


def evidence(rank: int, num_envs: int = 2, host: str = "a", **changed: Any) -> Evidence:
    """Return evidence of one of several ranks, without faults."""
    first = rank * num_envs
    device = DeviceInfo(host=host, device="cpu", name="CPU", memory_gb=8, capability=None, egl_device=None)
    info = RankInfo(**dataclasses.asdict(device), rank=rank, pid=1, first_env_id=first, num_envs=num_envs, seed=rank)
    well: dict[str, Any] = {
        "info": info,
        "first_observations": [str(env) for env in range(first, first + num_envs)],
        "digests": {"actor.mean": "a", "critic.mean": "b"},
        "difference": 1e-7,
        "written": [] if rank else ["metrics.jsonl"],
        "per_mini_batch": 1.0,
        "per_iteration": 2.0,
        "iterations": [times()] * 3,
        "memory_mb": 1000.0,
    }
    return Evidence(**{**well, **changed})
