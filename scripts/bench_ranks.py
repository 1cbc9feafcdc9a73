"""Measure how the time of a run's bookkeeping grows with the number of ranks.

Bookkeeping means: to start and join ranks, to send events to the launcher, to sum metrics, and to compare ranks and
write a checkpoint.

With --real, torchrunx starts one process per rank, without envs and networks. With --simulated, this process is rank 0,
and no other rank exists: each collective returns at once, with a result as if every other rank had contributed about
the same values as rank 0. With --simulated, the script measures CPU time instead of elapsed time, because other
programs hardly change CPU time.

    uv run python scripts/bench_ranks.py --real 4 16 64 --simulated 16 64 256 1024
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from light_rank import Bookkeeping, keep_books, light_rank

from mjlab_dist import registry
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice, RankPlan, group
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.launch.supervision import Ranks
from mjlab_dist.messages import Event

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")


def real(num_ranks: int) -> tuple[float, list[Bookkeeping], list[Event]]:
    """Start real ranks.

    Returns:
        The seconds from start to end, the measurements of each rank, and the events for the user.
    """
    events: list[Event] = []
    start_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        plan = RunPlan(hosts=(Host(devices=(CPU,) * num_ranks),), budget=None, run_dir=Path(directory))
        config = registry.task_config("cartpole-balance")
        found = run_ranks(light_rank, Bookkeeping, config, plan, listen=events.append, control=Control())
    return time.perf_counter() - start_s, found, events


def simulated(num_ranks: int) -> tuple[float, Bookkeeping]:
    """Do the bookkeeping of rank 0 among simulated ranks.

    Returns:
        The CPU seconds in which the launcher handles the events of all ranks, and the measurements of rank 0.
    """
    ranks = Ranks(["localhost"] * num_ranks, lambda _: None, Control())
    start_s = time.process_time()
    for rank in range(num_ranks):
        ranks.receive({"kind": "joined", "rank": rank, "pid": os.getpid(), "host": "localhost"})
        ranks.receive({"kind": "beat", "rank": rank, "iteration": 1})
        ranks.receive({"kind": "result", "rank": rank, "result": {}})
    events_s = time.process_time() - start_s
    with tempfile.TemporaryDirectory() as directory, _simulated_group(num_ranks):
        plan = RankPlan(device=CPU, budget=None, run_dir=Path(directory))
        return events_s, keep_books(0, num_ranks, plan, 0.0, Control(), clock=time.process_time)


@contextlib.contextmanager
def _simulated_group(num_ranks: int) -> Iterator[None]:
    """Join a process group of simulated ranks, whose collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 (torch's, for such simulations)

    def all_reduce(values: torch.Tensor) -> None:
        """Leave the values as they are."""

    def all_gather(table: torch.Tensor, values: torch.Tensor) -> None:
        table.copy_(values.repeat(num_ranks))

    def gather_(values: torch.Tensor, table: list[torch.Tensor], dst: int) -> None:
        assert dst == 0
        for rank, one in enumerate(table):
            one.copy_(values + rank)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    replaced: dict[str, Any] = {
        "all_reduce": all_reduce, "all_gather_into_tensor": all_gather, "gather": gather_
    }  # fmt: skip
    try:
        with mock.patch.multiple(group.dist, **replaced):
            yield
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Print a table for real ranks and one for simulated ranks, with one row per number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--simulated", type=int, nargs="*", default=[16, 64, 256, 1024])
    args = parser.parse_args()
    print("| ranks | start and end, s | joining, s | metrics, ms | checkpoint, ms |\n|---|---|---|---|---|")
    for num_ranks in args.real:
        took_s, found, _ = real(num_ranks)
        first, joined_s = found[0], max(one.joined_s for one in found)
        print(
            f"| {num_ranks} | {took_s:.1f} | {joined_s:.2f} | {1e3 * first.metrics_s:.2f} | "
            f"{1e3 * first.checkpoint_s:.1f} |",
            flush=True,
        )
    print("\n| simulated ranks | events, ms | metrics, ms | checkpoint, ms |\n|---|---|---|---|")
    for num_ranks in args.simulated:
        events_s, first = simulated(num_ranks)
        print(
            f"| {num_ranks} | {1e3 * events_s:.2f} | {1e3 * first.metrics_s:.2f} | {1e3 * first.checkpoint_s:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
