"""A training run, from a config to its result: checks, devices, run directory, ranks, restarts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mjlab_dist import runs, worker
from mjlab_dist.budget import resolve
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.control import Control
from mjlab_dist.distributed import outside_launcher, rank_from_environment
from mjlab_dist.distributed.plan import number_by_bus
from mjlab_dist.errors import UserError
from mjlab_dist.faults import read_fault
from mjlab_dist.imports import import_learner
from mjlab_dist.launch.hosts import choose_hosts
from mjlab_dist.launch.restarts import run_with_restarts
from mjlab_dist.machine.devices import find_gpus, in_this_process, plan_devices, plan_own_device
from mjlab_dist.machine.preflight import check_machine
from mjlab_dist.messages import Listener, listening
from mjlab_dist.worker import RunResult

_training = threading.Lock()
"""Held while this process trains: recorded physics and torch.distributed's group are one of a kind in a process."""


def train(
    config: TrainConfig,
    listen: Listener,
    started: Callable[[Path, int], None],
    control: Control | None = None,
    *,
    own_process: bool = False,
) -> RunResult:
    """Train a policy and wait for it; from any thread, one training at a time.

    One rank runs in this process, if CUDA shows its device here; more run in processes of their own, through torchrunx,
    and on other machines by SSH. Where torchrun or SLURM started this process as one of several, it is one rank.
    Signals are left alone: KeyboardInterrupt ends every rank.

    Args:
        config: The run.
        listen: Takes progress.
        started: Called with the run directory and the number of ranks, before any rank exists.
        control: By which the run can be asked to stop in order.
        own_process: Whether this process only trains, this once, so that its CUDA_VISIBLE_DEVICES may be changed.

    Raises:
        UserError: If the config cannot train here.
        RankError: If one of several ranks ended early. What the only rank raises comes as it is.
    """
    if not _training.acquire(blocking=False):
        raise UserError("a training runs in this process already; wait until it has ended, or start another process")
    try:
        return _train(config, listen, started, control or Control(), own_process=own_process)
    finally:
        _training.release()


def _train(
    config: TrainConfig,
    listen: Listener,
    started: Callable[[Path, int], None],
    control: Control,
    *,
    own_process: bool,
) -> RunResult:
    _check(config)
    number_by_bus(os.environ)
    if outside_launcher(os.environ):
        return _train_as_one_of_many(config, listen, control, own_process=own_process)
    gpus = find_gpus()
    plan = plan_devices(config, os.environ, gpus)
    hosts = choose_hosts(config, os.environ)
    num_ranks = len(hosts) * len(plan.devices)
    config, lines = resolve(config, num_ranks)
    resumed = _find_resumed(config)
    warnings = check_machine(config, plan, os.environ, gpus, resumed)
    run_dir = resumed or runs.create_run_dir(config)
    with runs.locked(run_dir):
        runs.write_origin(run_dir, dataclasses.replace(config, resume=None), sys.argv, plan.names * len(hosts))
        started(run_dir, num_ranks)
        _say(lines, listen)
        for warning in warnings:
            listen({"kind": "warning", "text": warning})
        try:
            # A rank that may have to be started again has to have a process of its own.
            if num_ranks == 1 and config.max_restarts == 0:
                here = plan if own_process else in_this_process(plan, os.environ, gpus)
                if here is not None:
                    if own_process:
                        import_learner()
                    with listening(listen), _egl_device_restored():
                        return worker.run(config, here, run_dir, control)
            return run_with_restarts(config, plan, run_dir, listen, control, hosts=hosts)
        except UserError:
            if resumed is None:
                shutil.rmtree(run_dir)  # nothing was trained, and `--run latest` must not find it
            raise


def _check(config: TrainConfig) -> None:
    """Refuse what needs no look at devices to be refused."""
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


def _find_resumed(config: TrainConfig) -> Path | None:
    """The directory of the run to go on with, if that is asked for."""
    if config.resume is None:
        return None
    run_dir = runs.find_run_to_resume(config.log_root, config.task, config.resume)
    newest = max(runs.checkpoints(run_dir), default=0)
    if newest >= config.max_iterations and config.total_timesteps is None:
        raise UserError(
            f"--max-iterations {config.max_iterations}: is the total, and {run_dir} has {newest} already; give more of them"
        )
    return run_dir


def _train_as_one_of_many(config: TrainConfig, listen: Listener, control: Control, *, own_process: bool) -> RunResult:
    rank, gpus = rank_from_environment(os.environ), find_gpus()
    plan = plan_own_device(config, rank, os.environ, gpus)
    if not own_process:
        here = in_this_process(plan, os.environ, gpus, rank.local_rank)
        if here is None:
            name = plan.names[rank.local_rank]
            raise UserError(
                f"LOCAL_RANK {rank.local_rank}: CUDA does not show {name} in this process; give each process its own "
                "CUDA_VISIBLE_DEVICES, or start the command train in place of this script"
            )
        plan = here
    else:
        import_learner()
    config, lines = resolve(config, rank.world_size)
    if rank.is_main:
        _say(lines, listen)
    with listening(listen) if rank.is_main else contextlib.nullcontext(), _egl_device_restored():
        return worker.run(config, plan, _find_resumed(config), control)


@contextlib.contextmanager
def _egl_device_restored() -> Iterator[None]:
    """Restore the variable that a rank in this process sets for its device; the next run may take another device."""
    before = os.environ.get(worker.EGL_DEVICE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(worker.EGL_DEVICE, None)


def _say(lines: list[str], listen: Listener) -> None:
    for line in lines:
        listen({"kind": "status", "text": line})
