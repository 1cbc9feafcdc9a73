"""Measure complete training runs on one and two CPU ranks: wall-clock time of the command, and final mean return.

uv run python scripts/bench_training.py cartpole-balance
uv run python scripts/bench_training.py cartpole-swingup
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timed import BIN, clean_environment

RANKS = (1, 2)

SEEDS = tuple(range(1, 1 + 3 * max(RANKS), max(RANKS)))
"""Rank r uses seed + r, so seeds of independent runs must be at least the number of ranks apart."""


def main() -> None:
    """Print one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    args = parser.parse_args()
    for ranks in RANKS:
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as root:
                # Run the command
                start = time.monotonic()
                command = [
                    str(BIN / "train"),
                    args.task,
                    "--gpu-ids",
                    "None",
                    "--cpu-ranks",
                    str(ranks),
                    "--seed",
                    str(seed),
                ]
                done = subprocess.run(
                    [*command, "--log-root", root], env=clean_environment(), capture_output=True, check=False
                )
                took = time.monotonic() - start
                if done.returncode:
                    sys.exit(done.stderr.decode())
                # Print the time, and the mean return from the last row of metrics
                (metrics,) = Path(root).rglob("metrics.jsonl")
                last = json.loads(metrics.read_text().splitlines()[-1])
            figures = f"trained in {took:.0f} s, final mean return {last['mean_return']:.0f}"
            print(f"{args.task}, {ranks} rank(s), seed {seed}: {figures}")


if __name__ == "__main__":
    main()
