"""Measure the time of each part of an env step on the CPU.

One process with one thread applies random actions around 0, with each engine in turn. Every figure is the CPU time of
this process per control step of all envs. CPU time is measured instead of elapsed time, because other programs on the
machine hardly change it. The steps are measured in several rounds; figures are medians over these rounds, with minimum
and maximum. With the engine mujoco, the same physics is also measured with mujoco.batch alone.

    uv run python scripts/bench_env.py quadruped-velocity-flat --num-envs 256
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from mujoco.batch import Batch
from timed import spread

from mjlab_dist.config import registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.env import Env
from mjlab_dist.sim import start_warp

PARTS = (
    "physics",
    "actions",
    "sensors",
    "terminations",
    "rewards",
    "curricula",
    "resets and events",
    "observations",
)


class Clock:
    """Records the CPU time of each part of an env step.

    Attributes:
        spent_s: CPU time of each part, in s. To measure from 0 again, replace this dict.
    """

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = dict.fromkeys(PARTS, 0.0)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `function`, and adds the CPU time of the call to `part`."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_s[part] += time.process_time() - start

        return call

    def watch(self, part: str, owner: Any, name: str) -> None:
        """Replace a method with one that also records its time."""
        setattr(owner, name, self.timed(part, getattr(owner, name)))


def watched(env: Env) -> Clock:
    """Return a clock that records the time of an env's parts."""
    clock = Clock()
    clock.watch("physics", env.sim, "step")
    clock.watch("actions", env._actions, "apply")
    env._sensor_updates = [clock.timed("sensors", update) for update in env._sensor_updates]
    env._episode_ends = [clock.timed("curricula", ends) for ends in env._episode_ends]
    env._rewards = [clock.timed("rewards", term) for term in env._rewards]
    env._terminations = [clock.timed("terminations", term) for term in env._terminations]
    clock.watch("resets and events", env, "_start_episodes")
    clock.watch("resets and events", env._events, "happen_at_intervals")
    clock.watch("observations", env, "_observe")
    return clock


class Alone:
    """``mujoco.batch`` without an env: steps the same states with the same inputs."""

    def __init__(self, env: Env) -> None:
        self._env, self._batch = env, Batch(env.sim.model, env.num_envs, 1)
        self._rows = {name: torch.from_numpy(self._batch.bind(name)) for name in env.sim.physics}
        self._before: dict[str, torch.Tensor] = {}

    def store(self) -> None:
        """Store the state before a step of the env."""
        self._before = {name: tensor.clone() for name, tensor in self._env.sim.physics.items()}

    def step_s(self) -> float:
        """Repeat the physics of the env's step, and return its CPU time in s."""
        for name, tensor in {**self._before, "ctrl": self._env.sim.ctrl}.items():
            self._rows[name].copy_(tensor.view(self._rows[name].shape))
        start = time.process_time()
        self._batch.step(nstep=self._env.cfg.sim.decimation)
        return time.process_time() - start


def measure(task: str, num_envs: int, steps: int, rounds: int, action_std: float) -> None:
    """Measure the parts of a step with each engine, in alternate rounds, and print them."""
    torch.set_num_threads(1)
    start_warp("cpu")
    config = registry.task_config(task).env
    engines = ("warp", "mujoco")
    envs = {engine: Env(replaced(config, ["sim", "engine"], engine), num_envs, "cpu") for engine in engines}
    clocks = {engine: watched(env) for engine, env in envs.items()}
    alone = Alone(envs["mujoco"])
    results: dict[str, dict[str, list[float]]] = {
        engine: {name: [] for name in (*PARTS, "the rest", "whole", "mujoco.batch alone")} for engine in engines
    }
    with torch.inference_mode():
        for i in range(rounds + 1):
            for engine, env in envs.items():
                clock, whole_s, alone_s = clocks[engine], 0.0, 0.0
                clock.spent_s = dict.fromkeys(PARTS, 0.0)
                for actions in action_std * torch.randn(steps, num_envs, env.num_actions):
                    alone.store()
                    start = time.process_time()
                    env.step(actions)
                    whole_s += time.process_time() - start
                    if engine == "mujoco":
                        alone_s += alone.step_s()
                if i == 0:
                    continue  # to warm up
                spent_s = {**clock.spent_s, "the rest": whole_s - sum(clock.spent_s.values()), "whole": whole_s}
                for part, part_s in {**spent_s, "mujoco.batch alone": alone_s}.items():
                    results[engine][part].append(part_s / steps)
    for engine in engines:
        report(f"{task}, {num_envs} envs, engine {engine}", num_envs, results[engine])
    ratios = [w / m for w, m in zip(*(results[engine]["whole"] for engine in engines), strict=True)]
    print(f"warp / mujoco       {spread(ratios, 3):>28}")


def report(title: str, num_envs: int, results: dict[str, list[float]]) -> None:
    """Print the CPU time and share of each part of a step, the ratio of the whole step to physics, and the speed."""
    alone = results.pop("mujoco.batch alone")
    whole_s = statistics.median(results["whole"])
    print(f"{title}: ms per step of all envs")
    for part, spent_s in results.items():
        share = statistics.median(spent_s) / whole_s
        print(f"  {part:<18}{spread([1e3 * s for s in spent_s], 3):>28}{share:>8.1%}")
    ratios = [whole / physics for whole, physics in zip(results["whole"], results["physics"], strict=True)]
    print(f"  whole / physics   {spread(ratios, 3):>28}   (goal: at most 1.15 with 64 envs)")
    if any(alone):
        ratios = [whole / batch for whole, batch in zip(results["whole"], alone, strict=True)]
        print(f"  whole / alone     {spread(ratios, 3):>28}   (mujoco.batch; goal: at most 1.25 with 256 envs)")
    print(f"  env-steps/s       {spread([num_envs / s for s in results['whole']]):>28}")


def main() -> None:
    """Read the command line, and run the measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", default="quadruped-velocity-flat")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20, help="control steps per round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--action-std", type=float, default=0.5, help="standard deviation of the random actions")
    args = parser.parse_args()
    measure(args.task, args.num_envs, args.steps, args.rounds, args.action_std)


if __name__ == "__main__":
    main()
