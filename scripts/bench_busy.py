"""Measure how the number of spins of waiting OpenMP threads changes the steps per second of one rank on all cores.

An OpenMP thread that waits for work checks for it in a loop (it spins) before it sleeps. The environment variable
GOMP_SPINCOUNT is the number of checks. This script compares mjlab_dist's setting of 1,000 with OpenMP's default of
300,000, first on idle cores, then on cores that other programs keep busy.

uv run python scripts/bench_busy.py
"""

from __future__ import annotations

import argparse
import os

from timed import busy, run_ours, spread

OPENMP_DEFAULT = "300000"
"""Default of GOMP_SPINCOUNT in GNU OpenMP, from the manual of libgomp."""


def main() -> None:
    """Print the training speeds with both settings, and the ratio of each round, for idle cores and for busy cores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40)
    args = parser.parse_args()
    flags = ("--gpu-ids", "None", "--max-iterations", str(args.iterations))
    for name, programs in (("idle", 0), ("busy", len(os.sched_getaffinity(0)))):
        short: list[float] = []
        long: list[float] = []
        with busy(programs):
            for _ in range(args.rounds):
                short.append(run_ours(*flags).steps_per_s)
                long.append(run_ours(*flags, env={"GOMP_SPINCOUNT": OPENMP_DEFAULT}).steps_per_s)
        ratios = ", ".join(f"{ours / default:.2f}" for ours, default in zip(short, long, strict=True))
        print(f"{name} cores: {spread(short)} steps/s with 1,000 checks, {spread(long)} steps/s with OpenMP's default")
        print(f"  ratio of these speeds in each round: {ratios}")


if __name__ == "__main__":
    main()
