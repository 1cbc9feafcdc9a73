"""Measure the physics and the env's control step, and print one JSON object as the last line, for the GPU report.

uv run python scripts/gpu_measure.py quadruped-velocity-flat --num-envs 4096 --device cuda:0
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict

from mjlab_dist import registry
from mjlab_dist.env import Env
from mjlab_dist.learn.capture import CapturedCall
from mjlab_dist.learn.clock import Clock
from mjlab_dist.sim import start_warp

WARM_UP_STEPS = 10

ACTION_STD = 0.5
"""Standard deviation of the random actions."""


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    print(json.dumps(measure_step(args.task, args.num_envs, args.device, args.steps, records=args.device != "cpu")))


def measure_step(task: str, num_envs: int, device: str, steps: int, *, records: bool) -> dict[str, Any]:
    """Measure a control step with random actions, by the device's clock.

    Args:
        task: Name of the task.
        num_envs: Number of envs.
        device: ``cpu`` or ``cuda:<index>``.
        steps: Control steps per measurement.
        records: Whether to record the control step as CUDA graphs.

    Returns:
        A dict with ``physics_s``, median time of the recorded physics within control steps; ``env_step_s``, mean time
        of the env's whole control step, replayed from CUDA graphs if it could be recorded; ``env_step_eager_s``, the
        same without graphs; ``recorded``, whether the control step was recorded; ``physics_recorded``, whether the
        physics was recorded; and ``memory_gb``, GPU memory in use. All times are in s.
    """
    start_warp(device)
    torch.manual_seed(0)
    env = Env(registry.task_config(task).env, num_envs, device)
    actions = torch.zeros(num_envs, env.num_actions, device=device)

    def advance(_: TensorDict) -> TensorDict:
        actions.normal_(std=ACTION_STD)
        return env.step(actions)[0]

    with torch.inference_mode():
        obs = env.get_observations()
        for _ in range(WARM_UP_STEPS):
            obs = advance(obs)
        physics_s, eager_s = _measure_physics(env, advance, obs, steps)
        recorded = CapturedCall(advance, "the env's step", device, env.sim) if records else None
        env_step_s = _measure_mean(recorded or advance, obs, device, steps)
    return {
        "physics_s": physics_s,
        "env_step_s": env_step_s,
        "env_step_eager_s": eager_s,
        "recorded": recorded is not None and recorded.is_recorded,
        "physics_recorded": env.sim.captured,
        "memory_gb": _used_gb(device),
    }


def _measure_physics(
    env: Env, advance: Callable[[TensorDict], TensorDict], obs: TensorDict, steps: int
) -> tuple[float, float]:
    """Return the median seconds of the physics, and the mean seconds of the control steps around it."""
    clock = Clock(str(env.device))
    marks: list[tuple[Any, Any]] = []
    step = env.sim.step

    def timed() -> None:
        start = clock.mark()
        step()
        marks.append((start, clock.mark()))

    env.sim.step = timed
    try:
        mean_s = _measure_mean(advance, obs, str(env.device), steps)
    finally:
        env.sim.step = step
    physics = [clock.seconds(*pair) for pair in marks[-steps:]]
    return statistics.median(physics), mean_s


def _measure_mean(advance: Callable[[TensorDict], TensorDict], obs: TensorDict, device: str, steps: int) -> float:
    """Return the mean seconds of a call, after three that warm up and record."""
    clock = Clock(device)
    for _ in range(3):
        obs = advance(obs)
    start = clock.mark()
    for _ in range(steps):
        obs = advance(obs)
    end = clock.mark()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return clock.seconds(start, end) / steps


def _used_gb(device: str) -> float | None:
    if device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 1e9


if __name__ == "__main__":
    main()
