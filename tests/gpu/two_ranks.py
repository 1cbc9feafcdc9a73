"""Train on two ranks that share one GPU and communicate through gloo, and print the result as JSON.

test_gpu.py and scripts/gpu_check.py run this program.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from mjlab_dist import registry, worker
from mjlab_dist.budget import plan_budget
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.messages import Event
from mjlab_dist.run_dir import create_run_dir

NUM_ENVS = 64

ITERATIONS = 2


def main(
    device: str,
    log_root: str,
    task_name: str = "cartpole-balance",
    num_envs: int | str = NUM_ENVS,
    max_iterations: int | str = ITERATIONS,
) -> None:
    """Train on two ranks, and print the result as JSON.

    Args:
        device: Device of both ranks, ``cuda:0`` or ``cpu``.
        log_root: Directory in which the run directory is created.
        task_name: Name of the task.
        num_envs: Envs per rank.
        max_iterations: Iterations to train.
    """
    shared = RankDevice(device=device, name="shared", torch_threads=1, backend="gloo")
    task = registry.task_config(task_name)
    config = dataclasses.replace(task, num_envs=int(num_envs), max_iterations=int(max_iterations), log_root=log_root)
    run_dir = create_run_dir(config)
    plan = RunPlan(hosts=(Host(devices=(shared,) * 2),), budget=plan_budget(config, 2), run_dir=run_dir)
    events: list[Event] = []
    result, _ = run_ranks(worker.run, worker.RunResult, config, plan, listen=events.append, control=Control())
    print(json.dumps({"run_dir": str(run_dir), "result": dataclasses.asdict(result), "events": events}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
