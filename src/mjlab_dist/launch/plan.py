"""What is settled about a run before any rank starts: devices, hosts, envs, iterations, run directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mjlab_dist import runs
from mjlab_dist.budget import Budget, plan_budget
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.distributed import RankDevice, RankPlan, outside_launcher
from mjlab_dist.errors import UserError
from mjlab_dist.faults import read_fault
from mjlab_dist.launch.hosts import HERE, choose_hosts
from mjlab_dist.machine.devices import Gpu, plan_devices
from mjlab_dist.machine.preflight import check_machine


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Devices, hosts, budget and directory of a run. The config says what was asked for, the plan what was settled."""

    hosts: tuple[str, ...] = (HERE,)
    """Machines, by name or address; the first is this one."""
    devices: tuple[RankDevice, ...]
    """The device of each rank of a machine, in order of local rank; the same on every machine."""
    budget: Budget | None
    """Envs per rank, and iterations; None for ``--num-envs auto``, where ranks measure their memory first."""
    run_dir: Path
    """The run directory, on this machine."""
    is_new: bool = True
    """Whether the directory was made for this run; False for a run that is resumed."""
    warnings: tuple[str, ...] = ()
    """Lines for the user about this machine."""

    @property
    def num_ranks(self) -> int:
        """Number of ranks, over all machines."""
        return len(self.hosts) * len(self.devices)

    @property
    def rank_plans(self) -> tuple[RankPlan, ...]:
        """What each rank of a machine is started with, in order of local rank."""
        return tuple(RankPlan(device=device, budget=self.budget, run_dir=self.run_dir) for device in self.devices)


def plan_run(
    config: TrainConfig, environ: Mapping[str, str], gpus: list[Gpu], new_run_dir: Callable[[TrainConfig], Path]
) -> RunPlan:
    """Settle a run. This is the only place that resolves ``auto``, ``all``, ``latest`` and totals over ranks.

    Args:
        config: A config that :func:`check_config` has passed.
        environ: The environment, for CUDA_VISIBLE_DEVICES among others.
        gpus: The machine's GPUs.
        new_run_dir: Called last, for the directory of a run that is not resumed.

    Raises:
        UserError: If the config cannot train here.
    """
    devices = plan_devices(config, environ, gpus)
    hosts = tuple(choose_hosts(config, environ))
    budget = plan_budget(config, len(hosts) * len(devices))
    resumed = find_resumed(config)
    warnings = check_machine(config, devices, environ, gpus, resumed)
    return RunPlan(
        hosts=hosts,
        devices=devices,
        budget=budget,
        run_dir=resumed or new_run_dir(config),
        is_new=resumed is None,
        warnings=tuple(warnings),
    )


def check_config(config: TrainConfig) -> None:
    """Raise if a config cannot train on any machine.

    Raises:
        UserError: If the config cannot train, wherever it is started.
    """
    validate(config)
    read_fault(os.environ)
    if config.init_from is not None and not Path(config.init_from).is_file():
        raise UserError(
            f"--init-from {config.init_from}: there is no such file; name a checkpoint, model_<iteration>.pt"
        )
    launcher = outside_launcher(os.environ)
    if launcher and config.hosts:
        shown = " ".join(config.hosts)
        raise UserError(f"--hosts {shown}: {launcher} starts the ranks, on its own machines; drop one of the two")


def find_resumed(config: TrainConfig) -> Path | None:
    """Return the directory of the run to resume; None for a new run.

    Raises:
        UserError: If there is no such run, or it has all of its iterations.
    """
    if config.resume is None:
        return None
    run_dir = runs.find_run_to_resume(config.log_root, config.task, config.resume)
    newest = max(runs.checkpoints(run_dir), default=0)
    if newest >= config.max_iterations and config.total_timesteps is None:
        raise UserError(
            f"--max-iterations {config.max_iterations}: is the total, and {run_dir} has {newest} already; give more of them"
        )
    return run_dir
