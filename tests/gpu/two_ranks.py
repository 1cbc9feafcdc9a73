"""Train on two ranks of one GPU through gloo and print the result as JSON. test_gpu.py and scripts/gpu_report.py run it in a process."""

from __future__ import annotations

import dataclasses
import json
import sys

from mjlab_dist import registry, runs, worker
from mjlab_dist.control import Control
from mjlab_dist.distributed import DevicePlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.messages import Event

NUM_ENVS = 64

ITERATIONS = 2


def main(
    device: str,
    log_root: str,
    task_name: str = "cartpole-balance",
    num_envs: int | str = NUM_ENVS,
    max_iterations: int | str = ITERATIONS,
) -> None:
    """Train and print.

    Args:
        device: Device of both ranks, ``cuda:0`` or ``cpu``.
        log_root: Directory of the run.
        task_name: Name of the task.
        num_envs: Envs per rank.
        max_iterations: Iterations to train.
    """
    plan = DevicePlan(devices=(device,) * 2, names=("shared",) * 2, torch_threads=1, backend="gloo")
    task = registry.task_config(task_name)
    config = dataclasses.replace(task, num_envs=int(num_envs), max_iterations=int(max_iterations), log_root=log_root)
    run_dir = runs.create_run_dir(config)
    events: list[Event] = []
    result, _ = run_ranks(worker.run, worker.RunResult, config, plan, run_dir, listen=events.append, control=Control())
    print(json.dumps({"run_dir": str(run_dir), "result": dataclasses.asdict(result), "events": events}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
