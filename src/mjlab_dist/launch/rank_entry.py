"""Entry point of a rank, which never returns."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import to_plain
from mjlab_dist.distributed import RankPlan, rank_from_environment
from mjlab_dist.distributed.heartbeat import Control, Watchdog
from mjlab_dist.errors import Exit, HangError, LostRankError, NonFiniteError, exit_code_of, with_notes
from mjlab_dist.imports import import_learner
from mjlab_dist.launch.channel import Channel, Request
from mjlab_dist.launch.output import redirect_output
from mjlab_dist.launch.worker import Entry
from mjlab_dist.machine.processes import die_with_parent
from mjlab_dist.messages import Event, emit, listening
from mjlab_dist.runs.run_dir import ERRORS_DIR

# Levels at which a rank logs events for the user
LOGGED = {
    **dict.fromkeys(("status", "compiling", "length", "iteration", "last_video"), logging.INFO),
    "warning": logging.WARNING,
    "debug": logging.DEBUG,
}

# Maximum time to wait until the report of a failed rank is sent, in seconds. Other ranks wait for its end.
REPORT_S = 5.0

_logger = logging.getLogger("mjlab_dist.events")


def run_or_die(entry: Entry[Any], config: TrainConfig, plans: Sequence[RankPlan]) -> NoReturn:
    """Run one of several ranks, send its result or error to the launcher, and end this process at once.

    If a failed rank only raised its error, the other ranks would wait for it in a collective operation for minutes. If
    a rank only returned its result, it would wait for torchrunx's agent for several seconds.
    """
    # From here on, Linux kills this rank when its agent ends. If the agent has ended before, end now.
    die_with_parent()
    agent = multiprocessing.parent_process()
    if agent is None or not agent.is_alive():
        sys.exit(1)
    own = rank_from_environment(os.environ)
    rank, plan, control = own.rank, plans[own.rank], Control()

    # Connections to the launcher, before any code of the user runs
    def die(error: BaseException, stack: list[str]) -> NoReturn:
        _die(error, "".join(stack), rank=rank, control=control, run_dir=plan.run_dir, channel=channel)

    def hung(reason: str) -> NoReturn:
        die(HangError(reason), traceback.format_stack(sys._current_frames()[threading.main_thread().ident or 0]))

    def receive(request: Request) -> None:
        if request == "report":
            hung("the launcher has asked for this report")
        control.request_stop()
        emit("stopping", rank=rank)

    redirect_output(rank)
    channel = Channel(rank, receive)
    with listening(channel.listen), listening(_log):
        emit("joined", rank=rank, pid=os.getpid(), host=socket.gethostname())
        # A scheduler sends SIGTERM to every process: stop as if the launcher had asked for it. Unblock the signal,
        # because ranks inherit the block that the launcher uses while agents start.
        signal.signal(signal.SIGTERM, lambda *_: control.request_stop())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        emit("step", rank=rank, step="importing libraries")
        import_learner()
        emit("step", rank=rank, step=None)

        # Watchdog, which reports progress, and ends the process if the training loop hangs
        def advanced(iteration: int) -> None:
            emit("beat", rank=rank, iteration=iteration)

        def silent(silent_s: float) -> None:
            hung(f"no iteration for {silent_s:.0f} s (--hang-timeout {config.hang_timeout:g})")

        Watchdog(control, config.hang_timeout, advanced, silent).start()

        # Training, then the result or the error
        try:
            result = entry(config, plan, control)
        except BaseException as error:  # noqa: BLE001
            die(error, traceback.format_exception(error))
        emit("result", rank=rank, result=to_plain(result))
        channel.flush(None)
        _leave(Exit.DONE)


def _log(event: Event) -> None:
    """Write an event for the user to the log file of the rank."""
    # A handler of the user's code may raise any error
    if event["kind"] in LOGGED:
        with contextlib.suppress(Exception):
            _logger.log(LOGGED[event["kind"]], "%s", event)


def _die(error: BaseException, stack: str, *, rank: int, control: Control, run_dir: Path, channel: Channel) -> NoReturn:
    # Report, to the log, to the launcher and to a file
    beat = control.last_beat
    report: dict[str, Any] = {
        "rank": rank,
        "host": socket.gethostname(),
        "time": time.time(),
        "iteration": beat and beat.iteration,
        "type": type(error).__name__,
        "exit_code": int(exit_code_of(error)),
        "follows": _follows_another(error),
        "sum_bytes": getattr(error, "sum_bytes", None),
        "message": with_notes(error),
        "traceback": stack,
    }
    _print_error(stack)
    emit("failed", report=report)
    try:
        (run_dir / ERRORS_DIR).mkdir(exist_ok=True)
        path = run_dir / ERRORS_DIR / f"rank{rank}.json"
        path.unlink(missing_ok=True)  # from an earlier attempt
        with path.open("x") as file:
            file.write(json.dumps(report, indent=2))
    except OSError as problem:
        _print_error(f"the report of rank {rank} could not be written to {run_dir} ({problem.strerror})\n")
    channel.flush(REPORT_S)
    _leave(exit_code_of(error))


def _print_error(text: str) -> None:
    """Print to the log of the rank. The user's code may have replaced ``sys.stderr`` and the settings of logging."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="backslashreplace"))


def _leave(code: Exit) -> NoReturn:
    with contextlib.suppress(Exception):  # the user's code may have replaced the streams
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _follows_another(error: BaseException) -> bool:
    """Return whether another rank probably failed first: the error is about that rank, or is from torch.distributed."""
    if isinstance(error, NonFiniteError):
        return error.of_another_rank
    if isinstance(error, LostRankError):
        return True
    if type(error).__module__.startswith("torch.distributed"):
        return True  # checked by module, because errors of the store, which is written in C++, have no Python frame
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path("torch", "distributed").as_posix() in Path(frames[-1].filename).as_posix()
