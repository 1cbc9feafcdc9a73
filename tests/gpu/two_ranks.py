"""Train on two ranks that share one GPU and communicate through gloo, and print the result as JSON.

test_gpu.py runs this program.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch import worker
from mjlab_dist.launch.budget import plan_budget
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.messages import Event
from mjlab_dist.runs.run_dir import create_run_dir

NUM_ENVS = 64

ITERATIONS = 2


def main(device: str, log_root: str) -> None:
    """Train on two ranks, and print the result as JSON.

    Args:
        device: Device of both ranks, ``cuda:0`` or ``cpu``.
        log_root: Directory in which the run directory is created.
    """
    shared = RankDevice(device=device, name="shared", torch_threads=1, backend="gloo")
    task = registry.task_config("cartpole-balance")
    config = dataclasses.replace(
        task, num_envs=NUM_ENVS, total_num_envs=None, max_iterations=ITERATIONS, log_root=log_root
    )
    run_dir = create_run_dir(config)
    plan = RunPlan(hosts=(Host(devices=(shared,) * 2),), budget=plan_budget(config, 2), run_dir=run_dir)
    events: list[Event] = []
    result, _ = run_ranks(worker.run, worker.RunResult, config, plan, listen=events.append, control=Control())
    print(json.dumps({"run_dir": str(run_dir), "result": dataclasses.asdict(result), "events": events}, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
