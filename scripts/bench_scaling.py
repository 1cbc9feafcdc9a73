"""Compare the env-steps/s of two CPU ranks and of one rank with the same number of envs per rank.

The single rank gets one core, as each of the two ranks does. A second figure gives it all cores: torch then uses more
threads, but the physics still uses one.

    uv run python scripts/bench_scaling.py
"""

from __future__ import annotations

import argparse
import os
import statistics

from timed import LIKE_PEER, run_ours, spread


def main() -> None:
    """Print the speeds and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=2048, help="per rank")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    # Speeds; rounds alternate between the three, so that other programs slow all of them down equally
    first_core = {min(os.sched_getaffinity(0))}
    flags = (
        "--gpu-ids",
        "None",
        "--num-envs",
        str(args.num_envs),
        "--max-iterations",
        str(args.iterations),
        *LIKE_PEER,
    )
    one, all_cores, two = [], [], []
    for _ in range(args.rounds):
        one.append(run_ours(*flags, cores=first_core).steps_per_s)
        all_cores.append(run_ours(*flags).steps_per_s)
        two.append(run_ours(*flags, "--cpu-ranks", "2").steps_per_s)
    # Results
    both = statistics.median(two)
    print(f"{args.num_envs} envs per rank")
    print(f"  1 rank, 1 core     {spread(one)} steps/s")
    print(f"  1 rank, all cores  {spread(all_cores)} steps/s")
    print(
        f"  2 ranks            {spread(two)} steps/s = {both / statistics.median(one):.2f} x 1 rank on 1 core", end=""
    )
    print(f" = {both / statistics.median(all_cores):.2f} x 1 rank on all cores")


if __name__ == "__main__":
    main()
