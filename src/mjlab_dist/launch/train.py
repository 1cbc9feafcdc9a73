"""A training run, from a config to its result: checks, devices, run directory, ranks."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mjlab_dist import runs, worker
from mjlab_dist.config import TrainConfig, validate
from mjlab_dist.distributed import DevicePlan, outside_launcher, rank_from_environment
from mjlab_dist.errors import UserError
from mjlab_dist.events import NAME
from mjlab_dist.launch.devices import find_gpus, plan_devices, plan_own_device
from mjlab_dist.launch.preflight import check_logger
from mjlab_dist.launch.processes import end_children, on_stop_signal
from mjlab_dist.worker import RunResult

Listener = Callable[[dict[str, Any]], None]
"""Takes what ranks tell the console: ``kind`` is ``status`` or ``warning`` (with ``text``), or ``iteration`` (with ``row``)."""


def train(
    config: TrainConfig, listen: Listener, started: Callable[[Path, int], None], stopped: Callable[[int], None]
) -> RunResult:
    """Train a policy and wait for it.

    One rank runs in this process; more run in processes of their own, through torchrunx. Where torchrun or SLURM started this
    process as one of several, it is one rank.

    Args:
        config: The run.
        listen: Takes progress.
        started: Called with the run directory and the number of ranks, before any rank exists.
        stopped: Called with the signal's number when SIGINT or SIGTERM has ended every rank; this process ends after it.

    Raises:
        UserError: If the config cannot train here.
        RankError: If a rank ended early.
    """
    validate(config)
    check_logger(config, os.environ)
    if outside_launcher(os.environ):
        return _train_as_one_of_many(config, listen)
    plan = plan_devices(config, os.environ, find_gpus())
    run_dir = runs.create_run_dir(config)
    runs.write_origin(run_dir, config, sys.argv, plan.names)
    started(run_dir, len(plan.devices))
    stopping = on_stop_signal(lambda signum: _stop(signum, stopped))
    try:
        return _train_here(config, plan, run_dir, listen)
    except UserError:
        shutil.rmtree(run_dir)  # nothing was trained, and `--run latest` must not find it
        raise
    finally:
        if stopping.is_set():
            threading.Event().wait()  # the thread that ends the ranks also ends this process


def _train_here(config: TrainConfig, plan: DevicePlan, run_dir: Path, listen: Listener) -> RunResult:
    if len(plan.devices) > 1:
        from mjlab_dist.launch.ranks import run_ranks  # noqa: PLC0415 (torchrunx imports torch)

        return run_ranks(config, plan, run_dir, listen)
    if plan.visible is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = plan.visible
    _listen_here(listen)
    return worker.run(config, plan, run_dir)


def _train_as_one_of_many(config: TrainConfig, listen: Listener) -> RunResult:
    rank = rank_from_environment(os.environ)
    plan = plan_own_device(config, rank, os.environ, find_gpus())
    if rank.is_main:
        _listen_here(listen)
    return worker.run(config, plan, None)


def _listen_here(listen: Listener) -> None:
    logger = logging.getLogger(NAME)
    logger.setLevel(logging.INFO)
    logger.addHandler(_ListenerHandler(listen))


class _ListenerHandler(logging.Handler):
    """Passes events of the rank in this process to the console."""

    def __init__(self, listen: Listener) -> None:
        super().__init__()
        self._listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] | None = getattr(record, "event", None)
        if event is not None:
            self._listen(event)


def _stop(signum: int, stopped: Callable[[int], None]) -> None:
    try:
        end_children()
        stopped(signum)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)
