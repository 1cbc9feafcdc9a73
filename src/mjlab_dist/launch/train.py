"""A training run, from a config to its result: checks, devices, run directory, ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from mjlab_dist import runs, worker
from mjlab_dist.budget import resolve
from mjlab_dist.config import TrainConfig, validate
from mjlab_dist.distributed import outside_launcher, rank_from_environment
from mjlab_dist.errors import UserError
from mjlab_dist.events import Listener, listening
from mjlab_dist.launch.devices import find_gpus, in_this_process, plan_devices, plan_own_device
from mjlab_dist.launch.preflight import check_logger
from mjlab_dist.worker import RunResult

_training = threading.Lock()
"""Held while this process trains: recorded physics and torch.distributed's group are one of a kind in a process."""


def train(config: TrainConfig, listen: Listener, started: Callable[[Path, int], None]) -> RunResult:
    """Train a policy and wait for it; from any thread, one training at a time.

    One rank runs in this process; more run in processes of their own, through torchrunx. Where torchrun or SLURM started this
    process as one of several, it is one rank. Signals are left alone: KeyboardInterrupt ends every rank.

    Args:
        config: The run.
        listen: Takes progress.
        started: Called with the run directory and the number of ranks, before any rank exists.

    Raises:
        UserError: If the config cannot train here.
        RankError: If one of several ranks ended early. What the only rank raises comes as it is.
    """
    if not _training.acquire(blocking=False):
        raise UserError("a training runs in this process already; wait until it has ended, or start another process")
    try:
        return _train(config, listen, started)
    finally:
        _training.release()


def _train(config: TrainConfig, listen: Listener, started: Callable[[Path, int], None]) -> RunResult:
    validate(config)
    check_logger(config, os.environ)
    if outside_launcher(os.environ):
        return _train_as_one_of_many(config, listen)
    gpus = find_gpus()
    plan = plan_devices(config, os.environ, gpus)
    config, lines = resolve(config, len(plan.devices))
    run_dir = runs.create_run_dir(config)
    runs.write_origin(run_dir, config, sys.argv, plan.names)
    started(run_dir, len(plan.devices))
    _say(lines, listen)
    try:
        if len(plan.devices) == 1:
            with listening(listen):
                return worker.run(config, in_this_process(plan, os.environ, gpus), run_dir)
        from mjlab_dist.launch.ranks import run_ranks  # noqa: PLC0415 (torchrunx imports torch)

        return run_ranks(worker.run, config, plan, run_dir, listen)[0]
    except UserError:
        shutil.rmtree(run_dir)  # nothing was trained, and `--run latest` must not find it
        raise


def _train_as_one_of_many(config: TrainConfig, listen: Listener) -> RunResult:
    rank = rank_from_environment(os.environ)
    plan = plan_own_device(config, rank, os.environ, find_gpus())
    config, lines = resolve(config, rank.world_size)
    if rank.is_main:
        _say(lines, listen)
    with listening(listen) if rank.is_main else contextlib.nullcontext():
        return worker.run(config, plan, None)


def _say(lines: list[str], listen: Listener) -> None:
    for line in lines:
        listen({"kind": "status", "text": line})
