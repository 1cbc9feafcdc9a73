"""Compare how long the ranks of one machine take to sum a tensor over all ranks with gloo and with our sockets.

uv run python scripts/bench_sum.py --ranks 2
uv run python scripts/bench_sum.py --ranks 2 --busy 6
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from timed import busy
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import spawn

from mjlab_dist.distributed.local_sum import LocalSum

WORK_S = 0.002
"""Time that each rank computes before each sum, in s. A mini-batch of a small policy takes about as long."""

SUMS = 200
ROUNDS = 4


def waited_us(add_up: Callable[[torch.Tensor], object], size: int) -> float:
    """Return the mean time of a sum in µs; before each sum, all ranks compute for the same time."""
    values, left, right = torch.zeros(size), torch.randn(128, 64), torch.randn(64, 64)
    waits: list[float] = []
    for _ in range(SUMS):
        end = time.perf_counter() + WORK_S
        while time.perf_counter() < end:
            torch.mm(left, right)
        start = time.perf_counter()
        add_up(values)
        waits.append(time.perf_counter() - start)
    return 1e6 * statistics.fmean(waits)


def measure(rank: int, ranks: int, store_file: str, sizes: list[int]) -> None:
    """Run one rank; rank 0 prints the results."""
    torch.set_num_threads(1)
    store = FileStore(store_file, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    local_sum = LocalSum(store, rank, ranks, timeout_s=60)
    for size in sizes:
        rounds = [(waited_us(dist.all_reduce, size), waited_us(local_sum.sum_, size)) for _ in range(ROUNDS)]
        if rank == 0:
            gloo, own = (statistics.median(times) for times in zip(*rounds, strict=True))
            ratios = ", ".join(f"{a / b:.1f}" for a, b in sorted(rounds, key=lambda pair: pair[0] / pair[1]))
            print(f"{size:>9,} numbers  gloo {gloo:6,.0f} us  sockets {own:6,.0f} us  ratio {ratios}", flush=True)
    dist.barrier()
    local_sum.close()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="number of processes, with one thread each")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10_000, 200_000], help="numbers in the tensor")
    parser.add_argument("--busy", type=int, default=0, help="number of other programs, each on a core")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        spawn(measure, (args.ranks, f"{folder}/store", args.sizes), nprocs=args.ranks)


if __name__ == "__main__":
    main()
