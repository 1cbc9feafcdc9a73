"""``--dry-run``: plan a run and measure its memory, without starting it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.task import EngineName
from mjlab_dist.distributed import Rank, RankDevice, outside_launcher
from mjlab_dist.distributed.rank import number_by_bus
from mjlab_dist.errors import UserError, byte_size, counted, listed
from mjlab_dist.imports import start_up
from mjlab_dist.launch.budget import Budget, budget_of
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan, check_config, notes, plan_run
from mjlab_dist.launch.worker import prepare_process
from mjlab_dist.machine.devices import find_gpus
from mjlab_dist.runs.run_dir import list_checkpoints, log_dir, next_run_dir

# Names of loggers in the table
TITLES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases"}

# Names of engines in the table
ENGINES = {"warp": "MuJoCo Warp", "mujoco": "MuJoCo's C code"}


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Result of a dry run."""

    # Devices, hosts, budget and directory; the directory exists only if the run is resumed
    plan: RunPlan
    # The engine that computes the physics
    engine: EngineName
    # Envs per rank, and iterations; --num-envs auto assumes that every rank has as much memory as the first
    budget: Budget
    # Memory of one env on its rank's device, in bytes
    env_bytes: int
    # Memory available to all envs of a rank on that device, in bytes
    usable_bytes: int


def dry_run(config: TrainConfig) -> DryRun:
    """Plan a run and build a few envs on its first device, without starting ranks or writing files."""
    if launcher := outside_launcher(os.environ):
        raise UserError(f"--dry-run: only describes ranks that this command starts; run it without {launcher}")
    # Plan: devices, hosts, budget, directory
    check_config(config)
    number_by_bus(os.environ)
    plan, config = plan_run(config, os.environ, find_gpus(), next_run_dir)
    # Measure the memory of an env with a few envs
    with start_up():
        prepare_process(plan.own_devices[0], Rank(), config.seed)
        from mjlab_dist.env import sizing  # imports torch
    room = sizing.measure_room(config, plan.own_devices[0].device, len(plan.own_devices))
    # Choose the number of envs for --num-envs auto
    budget = plan.budget
    if budget is None:
        num_envs, _ = sizing.choose_num_envs([room] * plan.num_ranks)
        budget = budget_of(config, plan.num_ranks, num_envs)
    engine = config.env.sim.engine
    return DryRun(plan=plan, engine=engine, budget=budget, env_bytes=room.env_bytes, usable_bytes=room.usable_bytes)


def describe(config: TrainConfig, run: DryRun) -> list[tuple[str, str]]:
    """Return the result of a dry run as rows of a title and a text."""
    # Compute the values in the table
    plan, budget = run.plan, run.budget
    num_envs = budget.num_envs * plan.num_ranks
    per_iteration = num_envs * config.agent.num_steps_per_env
    newest = max(list_checkpoints(plan.run_dir), default=0)
    left = budget.max_iterations - newest
    iterations = f"{left} left, {newest} of {budget.max_iterations} done" if newest else f"{budget.max_iterations}"
    needed = budget.num_envs * run.env_bytes
    kept = f"the newest {config.checkpoint.keep_last}" if config.checkpoint.keep_last else "all"
    unit = "" if isinstance(config.checkpoint.interval, str) else " iterations"
    videos = f"{config.video_length:g} s, every {config.video_interval} iterations"
    logs = log_dir(config, plan.run_dir, os.environ)
    # Fill the table
    rows = [
        ("Task", config.task),
        ("Ranks", f"{plan.num_ranks}: {_on_hosts(plan.hosts)}"),
        ("Engine", ENGINES[run.engine]),
        ("Envs", f"{budget.num_envs:,} per rank, {num_envs:,} in all"),
        ("Iterations", f"{iterations}; {per_iteration:,} steps each, {left * per_iteration:,} in all"),
        (
            "Memory",
            f"{byte_size(needed)} per rank for envs and rollout ({byte_size(run.env_bytes)} an env); "
            f"{byte_size(run.usable_bytes)} can be used",
        ),
        ("Run", f"{plan.run_dir} ({'new' if plan.is_new else 'resumed'})"),
        ("Checkpoints", f"every {config.checkpoint.interval}{unit}; keeps {kept}"),
        ("Curves", listed(["metrics.jsonl", *(TITLES.get(name, name) for name in config.logger)])),
        ("Videos", "none" if config.video_interval is None else videos),
        ("Rank logs", "none" if logs is None or plan.num_ranks == 1 else str(logs)),
    ]
    # Add notes
    rows += [("Note", note) for note in notes(config, plan.devices, budget)]
    if needed > run.usable_bytes:
        rows.append(("Warning", "the envs may not fit in memory; lower --num-envs, or use --num-envs auto"))
    return rows


def _devices(devices: tuple[RankDevice, ...]) -> str:
    first = devices[0]
    threads = counted(first.torch_threads, "thread")
    names = [device.name for device in devices]
    shown = f"{names[0]} x {len(names)}" if len(names) > 1 and len(set(names)) == 1 else ", ".join(names)
    return f"{shown} ({first.backend}, {threads} each)" if len(devices) > 1 else f"{shown} ({threads})"


def _on_hosts(hosts: tuple[Host, ...]) -> str:
    shown = [_devices(host.devices) for host in hosts]
    if len(hosts) == 1:
        return shown[0]
    if len(set(shown)) == 1:
        return f"{shown[0]}, on each of {listed([host.name for host in hosts])}"
    return "; ".join(f"{devices} on {host.name}" for devices, host in zip(shown, hosts, strict=True))
