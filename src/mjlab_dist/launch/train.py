"""A training run, from a config to its result: checks, devices, run directory, ranks, restarts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mjlab_dist import runs, worker
from mjlab_dist.budget import Budget, plan_budget
from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan, outside_launcher, rank_from_environment
from mjlab_dist.distributed.plan import number_by_bus
from mjlab_dist.distributed.rank_info import exchange
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_learner, start_up
from mjlab_dist.launch.plan import check_config, find_resumed, plan_run
from mjlab_dist.launch.restarts import run_with_restarts
from mjlab_dist.machine.devices import find_gpus, in_this_process, plan_own_device
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
    check_config(config)
    number_by_bus(os.environ)
    if outside_launcher(os.environ):
        return _train_as_one_of_many(config, listen, control, own_process=own_process)
    gpus = find_gpus()
    plan = plan_run(config, os.environ, gpus, runs.create_run_dir)
    names = [device.name for device in plan.devices] * len(plan.hosts)
    with _written_to(plan.run_dir, config, names, is_new=plan.is_new):
        started(plan.run_dir, plan.num_ranks)
        listen({"kind": "debug", "text": f"launcher: devices {', '.join(names)}; hosts {', '.join(plan.hosts)}"})
        _report_rounding(plan.budget, listen)
        for warning in plan.warnings:
            listen({"kind": "warning", "text": warning})
        # A rank that may have to be started again must have a process of its own.
        if plan.num_ranks == 1 and config.max_restarts == 0:
            device = plan.devices[0] if own_process else in_this_process(plan.devices[0], os.environ, gpus)
            if device is not None:
                if own_process:
                    import_learner()
                own = RankPlan(device=device, budget=plan.budget, run_dir=plan.run_dir)
                with listening(listen), _egl_device_restored():
                    return worker.run(config, own, control)
        return run_with_restarts(config, plan, listen, control)


def _train_as_one_of_many(config: TrainConfig, listen: Listener, control: Control, *, own_process: bool) -> RunResult:
    """Be one rank among those that another launcher started."""
    rank, gpus = rank_from_environment(os.environ), find_gpus()
    planned = plan_own_device(config, rank, os.environ, gpus)
    device = planned if own_process else in_this_process(planned, os.environ, gpus)
    if device is None:
        raise UserError(
            f"LOCAL_RANK {rank.local_rank}: CUDA does not show {planned.name} in this process; give each process its own "
            "CUDA_VISIBLE_DEVICES, or start the command train in place of this script"
        )
    if own_process:
        import_learner()
    budget = plan_budget(config, rank.world_size)
    if rank.is_main:
        _report_rounding(budget, listen)
    with start_up():
        from mjlab_dist.distributed.group import meet  # noqa: PLC0415 (imports torch)

        worker.set_gloo_interface(rank, os.environ)
        store = meet(rank)
    names = exchange(store, rank.rank, rank.world_size, "name", device.name)
    with contextlib.ExitStack() as stack:
        run_dir = None
        if rank.is_main:
            resumed = find_resumed(config)
            run_dir = resumed or runs.create_run_dir(config)
            stack.enter_context(_written_to(run_dir, config, names, is_new=resumed is None))
            stack.enter_context(listening(listen))
        told = exchange(store, rank.rank, rank.world_size, "run_dir", str(run_dir))
        stack.enter_context(_egl_device_restored())
        own = RankPlan(device=device, budget=budget, run_dir=Path(told[0]))
        return worker.run(config, own, control, store)


@contextlib.contextmanager
def _written_to(run_dir: Path, config: TrainConfig, devices: Sequence[str], *, is_new: bool) -> Iterator[None]:
    """Keep other launches out of the run directory, and write where the run comes from.

    A new directory is removed if the run turns out to be one that cannot train: nothing is in it, and ``--run latest`` must
    not find it.

    Args:
        run_dir: The run directory.
        config: The run's config.
        devices: A name per rank.
        is_new: Whether the directory was made for this run.
    """
    with runs.locked(run_dir):
        try:
            runs.write_origin(run_dir, dataclasses.replace(config, resume=None), sys.argv, devices)
            yield
        except UserError:
            if is_new:
                shutil.rmtree(run_dir)
            raise


@contextlib.contextmanager
def _egl_device_restored() -> Iterator[None]:
    """Restore the variable that a rank in this process sets for its device; the next run may take another device."""
    before = os.environ.get(worker.EGL_DEVICE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(worker.EGL_DEVICE, None)


def _report_rounding(budget: Budget | None, listen: Listener) -> None:
    if budget is not None and budget.note is not None:
        listen({"kind": "status", "text": budget.note})
