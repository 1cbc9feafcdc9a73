"""Ranks that imitate failures with NCCL: no rank notices that another failed, or can destroy the group on its own.

test_failure_order.py launches these ranks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankPlan, rank_from_environment
from mjlab_dist.distributed.group import meet, process_group
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch.worker import RunResult

FAILING = 1


def wait_for_ever() -> None:
    """Wait forever, like an NCCL kernel that needs data from a rank that has ended."""
    threading.Event().wait()


@contextmanager
def joined() -> Iterator[Rank]:
    """Join a process group. Destroying the group waits forever, as with NCCL if the other ranks never destroy it."""
    stand_in: Any = lambda *_: wait_for_ever()  # noqa: E731
    dist.destroy_process_group = stand_in
    rank = rank_from_environment(os.environ)
    init: Any = dist.init_process_group

    def init_gloo(_: str, **options: Any) -> None:
        init("gloo", **{**options, "device_id": None})

    stand_in_for_nccl: Any = init_gloo
    dist.init_process_group = stand_in_for_nccl
    with process_group(rank, "cpu", "nccl", meet(rank)):
        yield rank


def raise_while_peers_wait(_config: TrainConfig, _plan: RankPlan, _control: Control) -> RunResult:
    with joined() as rank:
        if rank.rank == FAILING:
            raise RuntimeError("an injected fault")
        wait_for_ever()
    raise AssertionError("no rank leaves the group")


def die_while_peers_wait(_config: TrainConfig, _plan: RankPlan, _control: Control) -> RunResult:
    with joined() as rank:
        if rank.rank == FAILING:
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_ever()
    raise AssertionError("no rank leaves the group")
