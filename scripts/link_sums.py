"""Measure the time of sums over two ranks in a gloo process group. `bench_links.py --sums` starts both ranks."""

from __future__ import annotations

import json
import os
import statistics
import time

import torch
import torch.distributed as dist

from mjlab_dist.distributed.rank import rank_from_environment
from mjlab_dist.worker import set_interfaces

SIZES = (1, 10_000, 1_000_000)
"""Numbers of values in a sum. The gradients of cartpole have about 10,000 values, those of a humanoid 1,000,000."""

REPETITIONS = {1: 60, 10_000: 60, 1_000_000: 8}
"""Number of sums that are timed for each size. The median time is printed."""


def main() -> None:
    """Time the sums of each size and data type. Rank 0 prints the median times in s, as JSON."""
    torch.set_num_threads(1)
    rank = rank_from_environment(os.environ)
    set_interfaces(rank, os.environ)
    dist.init_process_group("gloo")
    found: dict[str, float] = {}
    for size in SIZES:
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            values, times = torch.zeros(size, dtype=dtype), []
            for _ in range(REPETITIONS[size]):
                dist.barrier()
                start_s = time.perf_counter()
                dist.all_reduce(values)
                times.append(time.perf_counter() - start_s)
            found[f"{size} {name}"] = statistics.median(times)
    if rank.is_main:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
