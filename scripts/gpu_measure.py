"""Measure the physics and the env's control step, and print one JSON object as the last line, for the GPU report.

uv run python scripts/gpu_measure.py quadruped-velocity-flat --num-envs 4096 --device cuda:0
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from mjlab_dist import registry
from mjlab_dist.env import Env
from mjlab_dist.scaling.timing import measure_steps
from mjlab_dist.sim import start_warp


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
    """Measure control steps with random actions. On a GPU, the times are measured on the GPU.

    Args:
        task: Name of the task.
        num_envs: Number of envs.
        device: ``cpu`` or ``cuda:<index>``.
        steps: Control steps per measurement.
        records: Whether to record the control step as CUDA graphs.

    Returns:
        A dict with ``physics_s``, the median time of the physics within control steps; ``env_step_s``, the mean time of
        the env's whole control step, replayed from CUDA graphs if it could be recorded; ``env_step_eager_s``, the mean
        time of the whole control step without graphs; ``recorded``, whether the control step was recorded as graphs;
        ``physics_recorded``, whether the physics was recorded as graphs; and ``memory_gb``, the GPU memory in use in
        GB, or None on a CPU. All times are in s.
    """
    start_warp(device)
    torch.manual_seed(0)
    env = Env(registry.task_config(task).env, num_envs, device)
    times = measure_steps(env, steps, records=records)
    return {
        "physics_s": times.physics_s,
        "env_step_s": times.env_step_s,
        "env_step_eager_s": times.env_step_eager_s,
        "recorded": times.is_recorded,
        "physics_recorded": env.sim.captured,
        "memory_gb": _used_gb(device),
    }


def _used_gb(device: str) -> float | None:
    if device == "cpu":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 1e9


if __name__ == "__main__":
    main()
