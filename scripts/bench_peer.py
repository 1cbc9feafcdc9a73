"""Compare training with mjlab_dist and with mjlab on the CPU.

In each round, both programs train in turn. For cartpole-balance, both use the same substeps, network, rollout and PPO
settings; quadruped-velocity-flat is compared with mjlab's Go1. The script prints env-steps/s and the time from the
start of the command to the end of its first iteration: medians over rounds, with minimum and maximum. mjlab pins other
versions of packages, so it needs its own virtual environment: `uv venv peer && uv pip install --python peer
mjlab==1.6.0`.

    uv run python scripts/bench_peer.py cartpole-balance --peer-python peer/bin/python
    uv run python scripts/bench_peer.py quadruped-velocity-flat --num-envs 64 --peer-python peer/bin/python
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from pathlib import Path

from timed import SKIPPED, Timed, clean_environment, run, run_ours, spread

PEER_TASKS = {
    "cartpole-balance": "Mjlab-Cartpole-Balance",
    "quadruped-velocity-flat": "Mjlab-Velocity-Flat-Unitree-Go1",
}
"""mjlab's task for each task."""

LIKE_PEER = {
    "cartpole-balance": (
        "--env.sim.decimation", "5", "--env.episode-length-s", "50", "--agent.num-steps-per-env", "32",
    ),
    "quadruped-velocity-flat": (
        "--env.sim.decimation", "4", "--env.sim.options.timestep-s", "0.005", "--env.sim.options.cone", "elliptic",
        "--env.episode-length-s", "20", "--agent.num-learning-epochs", "5", "--agent.num-mini-batches", "4",
        "--agent.symmetry.use-data-augmentation", "False",
    ),
}  # fmt: skip
"""Flags that give a task the substeps, episode length, rollout length and mini-batches of mjlab's task."""


def run_peer(python: Path, task: str, num_envs: int, iterations: int) -> Timed:
    """Train mjlab's task that corresponds to a task."""
    with tempfile.TemporaryDirectory() as cwd:
        command = [
            str(python.parent / "train"), PEER_TASKS[task], "--gpu-ids", "None", "--env.scene.num-envs", str(num_envs),
            "--agent.max-iterations", str(iterations), "--agent.logger", "tensorboard",
        ]  # fmt: skip
        first_s, lines = run(command, r"Iteration time:", env=clean_environment(), cwd=cwd)
    speeds = [float(m[1]) for line in lines if (m := re.search(r"Steps per second: +([\d.]+)", line))]
    return Timed(statistics.median(speeds[SKIPPED:] or speeds), first_s)


def main() -> None:
    """Print one table per number of envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(PEER_TASKS))
    parser.add_argument("--peer-python", type=Path, required=True, help="interpreter of the environment with mjlab")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024, 4096], help="total numbers of envs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    for num_envs in args.num_envs:
        peer: list[Timed] = []
        results: dict[int, list[Timed]] = {1: [], 2: []}
        for _ in range(args.rounds):
            peer.append(run_peer(args.peer_python.absolute(), args.task, num_envs, args.iterations))
            for ranks, timings in results.items():
                flags = ("--gpu-ids", "None", "--cpu-ranks", str(ranks), "--num-envs", str(num_envs // ranks))
                iterations = ("--max-iterations", str(args.iterations))
                timings.append(run_ours(*flags, *LIKE_PEER[args.task], *iterations, task=args.task))
        report(f"{args.task}, {num_envs} envs", peer, results)


def report(title: str, peer: list[Timed], results: dict[int, list[Timed]]) -> None:
    """Print the speeds and times of the first iteration, and the ratios of our medians to mjlab's medians."""
    base = statistics.median(t.steps_per_s for t in peer)
    wait = statistics.median(t.first_iteration_s for t in peer)
    print(title)
    print(f"  mjlab, 1 process   {spread([t.steps_per_s for t in peer])} steps/s", end="")
    print(f"   first iteration after {spread([t.first_iteration_s for t in peer], 1)} s")
    for ranks, runs in results.items():
        speed = statistics.median(t.steps_per_s for t in runs)
        first = statistics.median(t.first_iteration_s for t in runs)
        name = f"ours, {ranks} rank{'s' * (ranks > 1)}"
        print(f"  {name:<18} {spread([t.steps_per_s for t in runs])} steps/s = {speed / base:.1f} x mjlab", end="")
        print(
            f"   first iteration after {spread([t.first_iteration_s for t in runs], 1)} s = {first / wait:.2f} x mjlab"
        )


if __name__ == "__main__":
    main()
