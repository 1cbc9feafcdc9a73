"""Train from a config: check it, choose devices and a run directory, start the ranks, and restart them if they fail."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankPlan, outside_launcher, rank_from_environment
from mjlab_dist.distributed.exchange import exchange
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank import RankDevice, number_by_bus
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_learner, start_up
from mjlab_dist.launch import worker
from mjlab_dist.launch.plan import check_config, describe_ranks, find_resumed, notes, plan_envs, plan_run
from mjlab_dist.launch.restarts import run_with_restarts
from mjlab_dist.launch.worker import RunResult, free_earlier_run
from mjlab_dist.machine.devices import find_gpus, in_this_process, plan_own_device
from mjlab_dist.machine.preflight import require_kernel_cache
from mjlab_dist.messages import Event, Listener, emit, listening
from mjlab_dist.runs.lease import Lease, leased
from mjlab_dist.runs.provenance import write_origin
from mjlab_dist.runs.run_dir import AUTO, CHECKPOINTS_DIR, create_run_dir, find_named_run
from mjlab_dist.runs.run_files import explaining

# Held while this process trains. A process can train only one run at a time, because it has only one set of recorded
# graphs of the physics, and one default group of torch.distributed.
_training = threading.Lock()


def train(
    config: TrainConfig,
    listen: Listener,
    started: Callable[[Path, str], None],
    control: Control | None = None,
    *,
    own_process: bool = False,
) -> RunResult:
    """Train a policy and wait for the result. May be called from any thread; one run at a time.

    A single rank runs in this process if ``max_restarts`` is 0 and CUDA in this process can see the rank's GPU. All
    other ranks run in separate processes. torchrunx starts these processes, over SSH if they are on other machines. A
    process that torchrun or SLURM started as one of several is itself one rank. This function installs no signal
    handlers. A KeyboardInterrupt ends every rank.

    Raises:
        RankError: If a rank in a separate process ended early. An error of a rank in this process is raised unchanged.
    """
    if not _training.acquire(blocking=False):
        raise UserError("this process is already training; wait until that run ends, or start another process")
    try:
        return _train(config, listen, started, control or Control(), own_process=own_process)
    finally:
        _training.release()


def _train(
    config: TrainConfig,
    listen: Listener,
    started: Callable[[Path, str], None],
    control: Control,
    *,
    own_process: bool,
) -> RunResult:
    # Config and launcher
    check_config(config)
    number_by_bus(os.environ)
    if outside_launcher(os.environ):
        with listening(listen) if rank_from_environment(os.environ).is_main else contextlib.nullcontext():
            return _train_as_one_of_many(config, control, own_process=own_process)
    gpus = find_gpus()
    with contextlib.ExitStack() as stack:
        # Plan: devices, hosts, budget, run directory
        shown = stack.enter_context(_given_paths(listen))
        stack.enter_context(_reserved_name(config))
        asked = config
        plan, config = plan_run(config, os.environ, gpus, create_run_dir)
        names = [device.name for device in plan.devices]
        run_dir, log_root = plan.run_dir, plan.run_dir.parent.parent
        shown += [(str(each.absolute()), str(each)) for each in (run_dir, log_root) if each != Path()]
        lease = stack.enter_context(_reserved(plan.run_dir, config, names, is_new=plan.is_new))
        plan = dataclasses.replace(plan, lease=lease)
        started(plan.run_dir, describe_ranks(plan))
        emit("debug", text=f"launcher: devices {', '.join(names)}; hosts {', '.join(plan.host_names)}")
        for note in notes(asked, plan.devices, plan.budget):
            emit("status", text=note)
        # A single rank in this process. With restarts, the rank gets its own process, because it may be killed or
        # crash.
        if plan.num_ranks == 1 and config.max_restarts == 0:
            device = plan.devices[0] if own_process else in_this_process(plan.devices[0], os.environ, gpus)
            if device is not None:
                _prepare_process(device, is_own=own_process)
                own = dataclasses.replace(plan.rank_plans[0], device=device)
                with _egl_device_restored():
                    return _with_given_paths(worker.run(config, own, control), plan.run_dir)

        # Otherwise, start the ranks in processes of their own
        return _with_given_paths(run_with_restarts(config, plan, control), plan.run_dir)


def _train_as_one_of_many(config: TrainConfig, control: Control, *, own_process: bool) -> RunResult:
    """Run this process as one of the ranks that another launcher started."""
    # Device
    rank, gpus = rank_from_environment(os.environ), find_gpus()
    planned = plan_own_device(config, rank, os.environ, gpus)
    device = planned if own_process else in_this_process(planned, os.environ, gpus)
    if device is None:
        raise UserError(
            f"LOCAL_RANK {rank.local_rank}: {planned.name} is not visible to CUDA in this process; set "
            "CUDA_VISIBLE_DEVICES for each process, or start the command train instead of this script"
        )
    require_kernel_cache(os.environ)
    _prepare_process(device, is_own=own_process)
    # Budget
    asked = config
    config, budget = plan_envs(config, [device], [device], gpus, rank.world_size)
    if rank.is_main:
        for note in notes(asked, [device], budget):
            emit("status", text=note)

    # Store where ranks meet
    with start_up():
        from mjlab_dist.distributed.group import meet  # imports torch

        worker.set_interfaces(rank, os.environ)
        store = meet(rank)
    # Run directory, which rank 0 creates or finds; the other ranks receive its path
    names = exchange(store, rank.rank, rank.world_size, "name", device.name)
    if asked.gpu_num_envs is not None and 0 < names.count("cpu") < len(names):
        raise UserError(
            "--num-envs: the task has other numbers of envs for CPUs and GPUs, but ranks are on both; give a number"
        )
    with contextlib.ExitStack() as stack:
        run_dir = lease = None
        if rank.is_main:
            stack.enter_context(_reserved_name(config))
            resumed = find_resumed(config)
            run_dir = resumed or create_run_dir(config)
            lease = stack.enter_context(_reserved(run_dir, config, names, is_new=resumed is None))
        run_dirs = exchange(store, rank.rank, rank.world_size, "run_dir", str(run_dir and run_dir.absolute()))

        # Training
        stack.enter_context(_egl_device_restored())
        num_envs = None if budget is None else budget.num_envs
        own = RankPlan(device=device, num_envs=num_envs, run_dir=Path(run_dirs[0]), lease=lease)
        return _with_given_paths(worker.run(config, own, control, store), run_dir or own.run_dir)


@contextlib.contextmanager
def _given_paths(listen: Listener) -> Iterator[list[tuple[str, str]]]:
    """Pass events to a listener, with paths as the user gave them; ranks use absolute paths. Errors are changed too.

    Yields:
        A list to fill: absolute paths, and what to show instead.
    """
    shown: list[tuple[str, str]] = []

    def given(text: str) -> str:
        return functools.reduce(lambda changed, pair: changed.replace(*pair), shown, text)

    def listen_given(event: Event) -> None:
        listen({**event, "text": given(event["text"])} if "text" in event else event)

    try:
        with listening(listen_given):
            yield shown
    except Exception as error:
        error.args = tuple(given(part) if isinstance(part, str) else part for part in error.args)
        raise


def _with_given_paths(result: RunResult, run_dir: Path) -> RunResult:
    """Return a result with the path of the run directory as the user gave it; ranks use an absolute path."""
    return dataclasses.replace(result, run_dir=run_dir, checkpoint=run_dir / CHECKPOINTS_DIR / result.checkpoint.name)


@contextlib.contextmanager
def _reserved_name(config: TrainConfig) -> Iterator[None]:
    """Hold the name of a new run of ``--resume auto``, so that two launches do not start two runs of this name."""
    if config.resume != AUTO:
        yield
        return
    directory = Path(config.log_root, config.task, f".{config.run_name}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--log-root {config.log_root}: {error.strerror}; choose a directory you can write to"
        ) from error
    try:
        with leased(directory):
            found = find_named_run(config.log_root, config.task, config.run_name)
            if found is not None:
                raise UserError(f"--resume {AUTO}: {found} has just appeared; start this command again")
            yield
    finally:
        with contextlib.suppress(OSError):  # another launch waits for the name
            directory.rmdir()


def _prepare_process(device: RankDevice, *, is_own: bool) -> None:
    """Import libraries into a process that only trains, or free the memory of an earlier run in a user's process."""
    if is_own:
        import_learner()
    else:
        free_earlier_run(device.device)


@contextlib.contextmanager
def _reserved(run_dir: Path, config: TrainConfig, devices: Sequence[str], *, is_new: bool) -> Iterator[Lease]:
    """Hold the lease of the run, and write the run's config and provenance into its directory.

    After a UserError, a new directory is removed again: the run cannot train, and ``--run latest`` must not find it.
    """
    with explaining(run_dir), leased(run_dir.absolute()) as lease:
        try:
            own = dataclasses.replace(config, resume=None)
            write_origin(run_dir, own, sys.argv, devices)
            yield lease
        except UserError:
            if is_new:
                shutil.rmtree(run_dir)
            raise


@contextlib.contextmanager
def _egl_device_restored() -> Iterator[None]:
    """Unset MUJOCO_EGL_DEVICE_ID if a rank in this process set it, because the next run may use another device."""
    before = os.environ.get(worker.EGL_DEVICE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(worker.EGL_DEVICE, None)
