"""Measure start-up times: `train --help`, `list-tasks`, and the first iteration with 1, 2 and 4 ranks.

The first iteration is measured in three cases: all kernels are compiled already, no kernel is compiled, or only the
kernels of a different robot are compiled.

uv run python scripts/bench_start.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from timed import BIN, clean_environment, run_ours, spread

COMMANDS = (("train", "--help"), ("train", "cartpole-balance", "--help"), ("list-tasks",))
ROUNDS = 10
COLD_ROUNDS = 3
NEXT_ROBOT = "gym-hopper"
"""Task that is started after the kernels of cartpole-balance have been compiled."""


def main() -> None:
    """Print the times in s."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for command in COMMANDS:
        took = [_seconds(*command) for _ in range(ROUNDS + 1)][1:]
        print(f"{' '.join(command):<32} {spread(took, 2)} s")
    for ranks in ("1", "2", "4"):
        warm = [_first_iteration(ranks) for _ in range(COLD_ROUNDS)]
        cold = [_cold(ranks) for _ in range(COLD_ROUNDS)]
        _report(f"{ranks} rank(s), to the end of the first iteration", warm, cold)
    warm = [_first_iteration("1", task=NEXT_ROBOT) for _ in range(COLD_ROUNDS + 1)][1:]
    cold = [_next_robot() for _ in range(COLD_ROUNDS)]
    _report(f"{NEXT_ROBOT} after another robot", warm, cold)


def _report(label: str, warm: Sequence[float], cold: Sequence[float]) -> None:
    added = statistics.median(cold) - statistics.median(warm)
    print(f"{label}: {spread(warm, 1)} s with compiled kernels, {spread(cold, 1)} s without: {added:.1f} s more")


def _seconds(*command: str) -> float:
    start = time.monotonic()
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], env=clean_environment(), capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr.decode())
    return time.monotonic() - start


def _first_iteration(ranks: str, env: dict[str, str] | None = None, task: str = "cartpole-balance") -> float:
    flags = ("--gpu-ids", "None", "--cpu-ranks", ranks, "--num-envs", "64", "--max-iterations", "1")
    return run_ours(*flags, env=env, task=task).first_iteration_s


def _cold(ranks: str) -> float:
    with tempfile.TemporaryDirectory() as cache:
        return _first_iteration(ranks, {"WARP_CACHE_PATH": cache})


def _next_robot() -> float:
    with tempfile.TemporaryDirectory() as cache:
        _first_iteration("1", {"WARP_CACHE_PATH": cache})
        return _first_iteration("1", {"WARP_CACHE_PATH": cache}, NEXT_ROBOT)


if __name__ == "__main__":
    main()
