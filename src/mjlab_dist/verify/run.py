"""Verify machines: a short run on all ranks, then another on a single rank. The files of both are removed."""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path

from mjlab_dist import worker
from mjlab_dist.budget import plan_budget
from mjlab_dist.config import SyncConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.control import Control
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.errors import UserError
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan, devices_of, plan_hosts, settled
from mjlab_dist.machine.devices import find_gpus
from mjlab_dist.messages import emit, send
from mjlab_dist.run_dir import create_run_dir, read_history
from mjlab_dist.verify.evidence import Evidence, verify_rank
from mjlab_dist.verify.judge import VerifyReport, judge
from mjlab_dist.worker import RunResult

# Interval in iterations for work that must happen only at the end
NEVER = 10**12


def verify(config: TrainConfig) -> VerifyReport:
    """Train for a few iterations on the devices of all hosts, then on the first device, and check the evidence."""
    # Checks
    validate(config)
    launcher = outside_launcher(os.environ)
    if launcher:
        raise UserError(f"verify: starts its own ranks; run it without {launcher}")
    # Devices, hosts and number of iterations
    hosts = plan_hosts(config, os.environ, find_gpus())
    config, num_ranks = settled(config, devices_of(hosts)), len(devices_of(hosts))
    budget = plan_budget(config, num_ranks)
    max_iterations = budget.max_iterations if budget else config.max_iterations
    if max_iterations < 2:
        raise UserError(f"--max-iterations {max_iterations}: the first iteration is not timed; use 2 or more")
    ranks = "1 rank" if num_ranks == 1 else f"{num_ranks} ranks, then 1 rank"
    note = budget.note if budget else None
    for text in filter(None, (note, f"Training {config.task} for {max_iterations} iterations with {ranks}.")):
        emit("status", text=text)
    # Run on all ranks, then on one rank, and remove the files
    with tempfile.TemporaryDirectory(prefix="mjlab-dist-verify-") as log_root:
        config = dataclasses.replace(
            config,
            log_root=log_root,
            logger=("tensorboard",),
            torchrunx_log_dir=config.torchrunx_log_dir or "",
            checkpoint=dataclasses.replace(config.checkpoint, interval=NEVER),
            sync=dataclasses.replace(config.sync, check_interval=NEVER),
        )
        plan = RunPlan(hosts=hosts, budget=budget, run_dir=create_run_dir(config))
        if num_ranks == 1:
            evidence = [verify_rank(config, plan.rank_plans[0], Control())]
            return judge(config, evidence, _speed(plan.run_dir), None)
        from mjlab_dist.launch.ranks import run_ranks  # torchrunx imports torch

        evidence = run_ranks(verify_rank, Evidence, config, plan, listen=send, control=Control())
        speed = _speed(plan.run_dir)
        alone = _alone(config, evidence[0], max_iterations)
        own_plan = RunPlan(
            hosts=(Host(devices=plan.own_devices[:1]),), budget=plan_budget(alone, 1), run_dir=create_run_dir(alone)
        )
        run_ranks(worker.run, RunResult, alone, own_plan, listen=send, control=Control())
        return judge(config, evidence, speed, _speed(own_plan.run_dir))


def _alone(config: TrainConfig, first: Evidence, max_iterations: int) -> TrainConfig:
    """Return the config of a run with a single rank, which does as much work as each rank of the first run."""
    return dataclasses.replace(
        config,
        num_envs=first.info.num_envs,
        total_num_envs=None,
        max_iterations=max_iterations,
        total_timesteps=None,
        fsdp_devices=1,
        sync=SyncConfig(check_interval=NEVER),
    )


def _speed(run_dir: Path) -> float:
    """Return the median of the steps per second, without the first iteration."""
    return statistics.median(read_history(run_dir)["steps_per_s"][1:].tolist())
