"""Measure how fast mjlab_dist.make simulates with one rank and with two, and how fast other vector envs simulate.

All programs simulate the same number of envs of the same robot with the same actions. Their measurements alternate.
The script prints env-steps per second, and the ratio of each speed to the speed of mjlab_dist.make with one process:
medians over rounds, with minimum and maximum. envpool is measured if it is installed. mjbatch pins another version of
MuJoCo, so it needs its own virtual environment: `uv venv peer && uv pip install --python peer mjbatch`.

    uv run --with envpool python scripts/bench_simulation.py gym-half-cheetah --mjbatch-python peer/bin/python
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import mujoco.rollout
import numpy as np
import torch
from mujoco.batch import Batch
from timed import spread

import mjlab_dist

GYM_IDS = {
    "gym-ant": "Ant-v5",
    "gym-half-cheetah": "HalfCheetah-v5",
    "gym-hopper": "Hopper-v5",
    "gym-humanoid": "Humanoid-v5",
    "gym-inverted-pendulum": "InvertedPendulum-v5",
    "gym-walker2d": "Walker2d-v5",
}
"""ID of the Gymnasium env that corresponds to each task."""

MIN_S = 2.0
"""Minimum duration of a measurement in s."""

ACTION = 0.3
"""The action of every actuator in every step."""

NUM_ROLLED = 20
"""Steps per rollout."""

Advance = Callable[[], int]
"""Simulates some steps of all envs, and returns the number of steps."""

Way = Callable[[str, int], AbstractContextManager[Advance]]
"""One of the compared programs: a function that makes a number of envs of a task, and yields a function that steps
them."""


def by_make(num_ranks: int) -> Way:
    """Step the envs of mjlab_dist.make with actions that this process computes."""

    @contextlib.contextmanager
    def use(task: str, num_envs: int) -> Iterator[Advance]:
        with mjlab_dist.make(task, gpu_ids=None, cpu_ranks=num_ranks, total_num_envs=num_envs, quiet=True) as envs:
            envs.reset(seed=1)
            actions = torch.full((num_envs, envs.num_actions), ACTION)

            def advance() -> int:
                envs.step(actions)
                return 1

            yield advance

    return use


@contextlib.contextmanager
def by_rollout(task: str, num_envs: int) -> Iterator[Advance]:
    """Use mjlab_dist.make with two ranks, and the method rollout, which transfers no data between steps."""
    with mjlab_dist.make(task, gpu_ids=None, cpu_ranks=2, total_num_envs=num_envs, quiet=True) as envs:
        envs.reset(seed=1)
        num_actions = envs.num_actions

        def policy(observations: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.full((len(observations["actor"]), num_actions), ACTION)

        def advance() -> int:
            envs.rollout(policy, NUM_ROLLED)
            return NUM_ROLLED

        yield advance


@contextlib.contextmanager
def by_gymnasium(task: str, num_envs: int) -> Iterator[Advance]:
    """Use Gymnasium's AsyncVectorEnv, with one process per env."""
    envs: Any = gymnasium.make_vec(GYM_IDS[task], num_envs=num_envs, vectorization_mode="async")
    envs.reset(seed=1)
    actions = np.full(envs.action_space.shape, ACTION, dtype=np.float32)

    def advance() -> int:
        envs.step(actions)
        return 1

    try:
        yield advance
    finally:
        envs.close()


@contextlib.contextmanager
def by_envpool(task: str, num_envs: int) -> Iterator[Advance]:
    """Use envpool, which reimplements Gymnasium's envs in C++ threads with MuJoCo's C library."""
    envpool: Any = importlib.import_module("envpool")
    envs: Any = envpool.make_gymnasium(GYM_IDS[task], num_envs=num_envs)
    envs.reset()
    actions = np.full((num_envs, *envs.action_space.shape), ACTION)

    def advance() -> int:
        envs.step(actions)
        return 1

    yield advance


@contextlib.contextmanager
def by_mujoco(task: str, num_envs: int) -> Iterator[Advance]:
    """Use mujoco.rollout in two threads: physics only, without observations, rewards and resets."""
    env: Any = gymnasium.make(GYM_IDS[task]).unwrapped
    model, frame_skip = env.model, env.frame_skip
    datas = [mujoco.MjData(model) for _ in range(2)]
    spec = mujoco.mjtState.mjSTATE_FULLPHYSICS
    state = np.zeros((num_envs, mujoco.mj_stateSize(model, spec)))
    mujoco.mj_getState(model, datas[0], state[0], spec)
    state[:] = state[0]
    controls = np.full((num_envs, NUM_ROLLED * frame_skip, model.nu), ACTION)
    with mujoco.rollout.Rollout(nthread=2) as rollout:

        def advance() -> int:
            rollout.rollout([model] * num_envs, datas, state, controls)
            return NUM_ROLLED

        yield advance


@contextlib.contextmanager
def by_batch(task: str, num_envs: int) -> Iterator[Advance]:
    """Use mujoco.batch in two threads: physics only."""
    env: Any = gymnasium.make(GYM_IDS[task]).unwrapped
    batch = Batch(env.model, num_envs, 2)
    batch.bind("ctrl")[:] = ACTION

    def advance() -> int:
        batch.step(nstep=env.frame_skip)
        return 1

    yield advance


MJBATCH = f"""
import sys, mjbatch, mujoco
batch = mjbatch.Batch(mujoco.MjModel.from_xml_path(sys.argv[1]), int(sys.argv[2]), 2)
batch.bind("ctrl")[:] = {ACTION}
for _ in sys.stdin:
    batch.step(nstep=int(sys.argv[3]))
    print(flush=True)
"""
"""A program that steps once per line of input, and then prints a line."""


def by_mjbatch(python: Path) -> Way:
    """Use mjbatch in two threads: physics only."""

    @contextlib.contextmanager
    def use(task: str, num_envs: int) -> Iterator[Advance]:
        env: Any = gymnasium.make(GYM_IDS[task]).unwrapped
        command = [str(python), "-c", MJBATCH, env.fullpath, str(num_envs), str(env.frame_skip)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            requests, replies = process.stdin, process.stdout

            def advance() -> int:
                requests.write("\n")
                assert replies.readline(), "mjbatch ended"
                return 1

            yield advance

    return use


def ways(mjbatch_python: Path | None) -> dict[str, Way]:
    """Return the programs by name. The speed of each is compared with the speed of the first."""
    found: dict[str, Way] = {
        "make, one process": by_make(1),
        "make, 2 ranks": by_make(2),
        "make, 2 ranks, rollout": by_rollout,
        "AsyncVectorEnv": by_gymnasium,
        "mujoco.rollout, 2 threads": by_mujoco,
        "mujoco.batch, 2 threads": by_batch,
    }
    if mjbatch_python:
        found["mjbatch, 2 threads"] = by_mjbatch(mjbatch_python.absolute())
    if importlib.util.find_spec("envpool"):
        found["envpool"] = by_envpool
    return found


def steps_per_s(advance: Advance, num_envs: int) -> float:
    """Return env-steps per second, after a warm-up."""
    advance()
    start, steps = time.monotonic(), 0
    while (took := time.monotonic() - start) < MIN_S:
        steps += advance()
    return steps * num_envs / took


def main() -> None:
    """Parse the arguments, measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(GYM_IDS))
    parser.add_argument("--num-envs", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-processes", type=int, default=256, help="skip AsyncVectorEnv if there are more envs")
    parser.add_argument("--mjbatch-python", type=Path, help="interpreter of the environment with mjbatch")
    args = parser.parse_args()
    for num_envs in args.num_envs:
        chosen = ways(args.mjbatch_python)
        if num_envs > args.max_processes:
            del chosen["AsyncVectorEnv"]
        measured: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(args.rounds):
            for name, way in chosen.items():
                with way(args.task, num_envs) as advance:
                    measured[name].append(steps_per_s(advance, num_envs))
        print(f"{args.task}, {num_envs} envs")
        for name, speeds in measured.items():
            base = measured["make, one process"]
            ratios = [speed / first for speed, first in zip(speeds, base, strict=True)]
            print(f"  {name:26} {spread(speeds, 0)} env-steps/s, ratio {spread(ratios, 2)}")
        shares = [
            1 - stepped / rolled
            for stepped, rolled in zip(measured["make, 2 ranks"], measured["make, 2 ranks, rollout"], strict=True)
        ]
        print(f"  make, 2 ranks: share of a step for transport and waiting: {statistics.median(shares):.0%}")


if __name__ == "__main__":
    main()
