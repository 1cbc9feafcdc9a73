"""Compare training with mjlab_dist and with mjlab, or with mjbatch's example, on the CPU.

In each round, both programs train in turn. For cartpole-balance, both use the same substeps, network, rollout and PPO
settings; quadruped-velocity-flat is compared with mjlab's Go1. With ``--mjbatch``, the peer is the Go1 of mjbatch's
examples/go1_joystick.py, with the same networks, rollout and mini-batches, and with its substeps or those of the task.
The script prints env-steps/s of training, of the rollouts alone, and the time from the start of the command to the end
of its first iteration: medians over rounds, with minimum and maximum. Peers pin other versions of packages, so each
needs its own virtual environment: `uv venv peer && uv pip install --python peer mjlab==1.6.0`, or `mjbatch==0.1.4
mujoco-menagerie torch glfw`.

    uv run python scripts/bench_peer.py cartpole-balance --peer-python peer/bin/python
    uv run python scripts/bench_peer.py quadruped-velocity-flat --num-envs 64 --peer-python peer/bin/python
    uv run python scripts/bench_peer.py quadruped-velocity-flat --num-envs 1024 --peer-python peer/bin/python \
        --mjbatch path/to/mjbatch
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from timed import Timed, clean_environment, run, run_ours, settled, spread

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


LIKE_MJBATCH = (
    "--agent.num-steps-per-env", "24", "--agent.num-learning-epochs", "5", "--agent.num-mini-batches", "4",
)  # fmt: skip
"""Flags that give a task the rollout length and mini-batches of mjbatch's Go1."""

SUBSTEPS_OF_MJBATCH = ("--env.sim.decimation", "5", "--env.sim.options.timestep-s", "0.004")
"""Flags that give a task the substeps of mjbatch's Go1."""

MJBATCH = """
import sys, time
sys.path.insert(0, sys.argv[1])
import go1_joystick as example, torch
example.NUM_ENVS = int(sys.argv[2])
env, net = example.Go1(example.NUM_ENVS), example.ActorCritic()
optimizer = torch.optim.Adam(net.parameters(), example.LR, fused=True)
for _ in range(int(sys.argv[3])):
    times = [time.perf_counter()]
    batch, _ = example.rollout(net, env)
    times.append(time.perf_counter())
    example.update(net, optimizer, batch, *example.gae(batch))
    times.append(time.perf_counter())
    print("Iteration:", example.HORIZON * example.NUM_ENVS, *times, flush=True)
"""
"""Program that trains with the functions of mjbatch's example, in the order of its own loop."""


def run_mjbatch(python: Path, checkout: Path, num_envs: int, iterations: int) -> Timed:
    """Train mjbatch's Go1."""
    command = [str(python), "-c", MJBATCH, str(checkout / "examples"), str(num_envs), str(iterations)]
    first_s, lines = run(command, "Iteration:", env=clean_environment(), cwd=str(checkout))
    rows = [[float(n) for n in line.split()[1:]] for line in lines if line.startswith("Iteration:")]
    whole = settled([steps / (end - start) for steps, start, _, end in rows])
    return Timed(whole, settled([steps / (middle - start) for steps, start, middle, _ in rows]), first_s)


def run_mjlab(python: Path, task: str, num_envs: int, iterations: int) -> Timed:
    """Train mjlab's task that corresponds to a task."""
    with tempfile.TemporaryDirectory() as cwd:
        command = [
            str(python.parent / "train"), PEER_TASKS[task], "--gpu-ids", "None", "--env.scene.num-envs", str(num_envs),
            "--agent.max-iterations", str(iterations), "--agent.logger", "tensorboard",
        ]  # fmt: skip
        first_s, lines = run(command, r"Iteration time:", env=clean_environment(), cwd=cwd)
    names = ("Steps per second", "Collection time", "Learning time")
    speeds, collect_s, learn_s = (
        [float(m[1]) for line in lines if (m := re.search(rf"{name}: +([\d.]+)", line))] for name in names
    )
    shares = [a / (a + b) for a, b in zip(collect_s, learn_s, strict=True)]
    return Timed(settled(speeds), settled([v / share for v, share in zip(speeds, shares, strict=True)]), first_s)


def main() -> None:
    """Print one table per number of envs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", help=f"{' or '.join(PEER_TASKS)}; with --mjbatch, any task of a robot with 12 motors")
    parser.add_argument("--peer-python", type=Path, required=True, help="interpreter of the peer's environment")
    parser.add_argument("--mjbatch", type=Path, help="checkout of mjbatch, to compare with its example, not with mjlab")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 1024, 4096], help="total numbers of envs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    args = parser.parse_args()
    if not args.mjbatch and args.task not in PEER_TASKS:
        parser.error(f"mjlab has no task like {args.task}; choose {' or '.join(PEER_TASKS)}")
    for num_envs in args.num_envs:
        programs = _programs(args, num_envs)
        results: dict[str, list[Timed]] = {name: [] for name in programs}
        for _ in range(args.rounds):
            for name, train in programs.items():
                results[name].append(train())
        report(f"{args.task}, {num_envs} envs", results)


def _programs(args: argparse.Namespace, num_envs: int) -> dict[str, Callable[[], Timed]]:
    """Return what is compared: the peer, and ours."""
    python, iterations = args.peer_python.absolute(), args.iterations

    def ours(ranks: int, *like: str) -> Timed:
        flags = ("--gpu-ids", "None", "--cpu-ranks", str(ranks), "--num-envs", str(num_envs // ranks))
        return run_ours(*flags, *like, "--max-iterations", str(iterations), task=args.task)

    if args.mjbatch:
        return {
            "mjbatch": partial(run_mjbatch, python, args.mjbatch.absolute(), num_envs, iterations),
            "2 ranks": partial(ours, 2, *LIKE_MJBATCH, *SUBSTEPS_OF_MJBATCH),
            "2 ranks, with the substeps of the task": partial(ours, 2, *LIKE_MJBATCH),
        }
    like = LIKE_PEER[args.task]
    return {
        "mjlab": partial(run_mjlab, python, args.task, num_envs, iterations),
        "1 rank": partial(ours, 1, *like),
        "2 ranks": partial(ours, 2, *like),
    }


def report(title: str, results: dict[str, list[Timed]]) -> None:
    """Print the figures of the peer and of ours, and the ratios of our medians to the peer's (the first in order)."""
    print(title)
    peer: dict[str, float] = {}
    for name, runs in results.items():
        print(f"  {name}")
        for quantity, digits in (("steps_per_s", 0), ("rollout_steps_per_s", 0), ("first_iteration_s", 1)):
            values = [getattr(timed, quantity) for timed in runs]
            middle = statistics.median(values)
            ratio = middle / peer.setdefault(quantity, middle)
            print(f"    {quantity:<20} {spread(values, digits)}, {ratio:.2f} x {next(iter(results))}")


if __name__ == "__main__":
    main()
