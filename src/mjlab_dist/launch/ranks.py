"""Several ranks through torchrunx: started, listened to, ended. The only module that imports torchrunx."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TextIO, TypeVar

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import DevicePlan
from mjlab_dist.errors import RankError, UserError
from mjlab_dist.events import Event, EventHandler, Listener
from mjlab_dist.launch.processes import LAUNCH, end_children
from mjlab_dist.worker import Entry, die_with_parent, run_or_die, start_up

T = TypeVar("T")

ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHON*",
    "CUDA*",
    "TORCH*",
    "PYTORCH*",
    "NCCL*",
    "GLOO*",
    "OMP*",
    "MKL*",
    "MUJOCO*",
    "WARP*",
    "WANDB*",
    "XDG_CACHE_HOME",
    "MJLAB_DIST*",
)
"""Variables that ranks need also where torchrunx does not pass them on by itself."""

SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Parts of names of variables that must not stand in a command line, which every user of the machine can read."""


def run_ranks(entry: Entry[T], config: TrainConfig, plan: DevicePlan, run_dir: Path, listen: Listener) -> list[T]:
    """Start ranks on this machine and wait for them.

    Args:
        entry: What each rank does; it travels by its name, its result as a pickle.
        config: The run's config.
        plan: A device per rank.
        run_dir: The run directory.
        listen: Called, in a thread of its own, with what ranks tell the console.

    Returns:
        The ranks' results, in order of rank.

    Raises:
        RankError: If a rank ended early.
        UserError: If it ended because of something that the user can mend.
    """
    with start_up():
        import torchrunx

    rank: Callable[[Entry[T], TrainConfig, DevicePlan, Path], T] = run_or_die
    launch = uuid.uuid4().hex
    # As multiprocessing does it, ranks import what this process can: a script's own directory is in sys.path only.
    extra = {LAUNCH: launch, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if plan.visible is not None:
        extra["CUDA_VISIBLE_DEVICES"] = plan.visible
    with _event_pipe(listen) as pipe, _child_errors() as errors:
        launcher = torchrunx.Launcher(
            hostnames=["localhost"],
            workers_per_host=len(plan.devices),
            backend=None,
            copy_env_vars=tuple(exported_names(os.environ)),
            extra_env_vars=extra,
        ).set_logging_handlers(
            functools.partial(_log_handlers, log_dir(config, run_dir, os.environ), len(plan.devices), pipe)
        )
        try:
            with _in_thread(lambda: launcher.run(rank, entry, config, plan, run_dir)) as future:
                try:
                    results = future.result().results
                finally:
                    end_children(launch)  # torchrunx tells its agent to end, and does not wait until it has
        except Exception as error:
            raise _first_failure(run_dir, len(plan.devices), errors, error) from error
    return [result for of_host in results.values() for result in of_host]


def log_dir(config: TrainConfig, run_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """Where the ranks' log files go: the variable beats the flag, the flag the default; None for no files."""
    chosen = environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
    if chosen is None:
        return run_dir / "torchrunx"
    return Path(chosen) if chosen else None


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Names of the variables to hand to ranks through torchrunx, which writes them into a command line.

    A process on this machine inherits the others too, secrets among them.
    """
    return [
        name
        for name in environ
        if any(fnmatch.fnmatch(name, pattern) for pattern in ENVIRONMENT) and not any(word in name for word in SECRET)
    ]


def _first_failure(run_dir: Path, num_ranks: int, errors: IO[str], error: Exception) -> RankError | UserError:
    """The rank that failed first: by its own report, or because it is missing where others wait for it."""
    reports = [json.loads(p.read_text()) for p in (run_dir / runs.ERRORS).glob("rank*.json")]
    reports.sort(key=lambda report: (report["in_collective"], report["time"]))
    silent = sorted(set(range(num_ranks)) - {report["rank"] for report in reports})
    if reports and not (reports[0]["in_collective"] and silent):
        first = reports[0]
        if first["type"] == UserError.__name__:
            return UserError(first["message"])
        return RankError(
            f"rank {first['rank']} failed: {first['type']}: {first['message']}", first["rank"], first["traceback"]
        )
    errors.seek(0)
    said = reports[0]["message"] if reports else str(error) or type(error).__name__
    who = f"rank {silent[0]}" if len(silent) == 1 else "a rank"
    return RankError(
        f"{who} ended without a report: it was killed (out of memory?) or crashed outside of Python. "
        f"What was noticed of it: {' '.join(said.split())}",
        silent[0] if len(silent) == 1 else None,
        errors.read(),
    )


@contextlib.contextmanager
def _event_pipe(listen: Listener) -> Iterator[int]:
    """A pipe's writing end for torchrunx's log process, which is forked from this one, and a thread that reads it."""
    read_fd, write_fd = os.pipe()

    def read() -> None:
        with os.fdopen(read_fd) as lines:
            for line in lines:
                listen(json.loads(line))

    reader = threading.Thread(target=read, name="events", daemon=True)
    reader.start()
    try:
        yield write_fd
    finally:
        os.close(write_fd)
        reader.join(timeout=2)


@contextlib.contextmanager
def _in_thread(function: Callable[[], T]) -> Iterator[Future[T]]:
    """Run a function in a thread that Ctrl-C does not reach, nor the processes that it starts.

    torchrunx waits in C code, for seconds: the calling thread waits in Python instead, where KeyboardInterrupt is raised at once.
    A terminal or a notebook sends Ctrl-C to every process, and ranks are to be ended by this one.
    """
    future: Future[T] = Future()

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    thread = threading.Thread(target=run, name="launcher", daemon=True)
    thread.start()
    try:
        yield future
    finally:
        # Interrupted before its agent has called, torchrunx waits for that for minutes; the thread is left to it.
        thread.join(timeout=2)


@contextlib.contextmanager
def _child_errors() -> Iterator[IO[str]]:
    """Send what child processes print as errors to a file: torchrunx kills an agent that may have ended, and `kill` complains.

    What this process prints as errors goes where it went: to the console, or into the notebook.
    """
    console = os.dup(2)
    with (
        tempfile.TemporaryFile("w+", errors="replace") as file,
        os.fdopen(os.dup(2), "w", buffering=1) as stderr,
        contextlib.redirect_stderr(stderr if _is_descriptor_2(sys.stderr) else sys.stderr),
    ):
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(console, 2)
            os.close(console)


def _is_descriptor_2(stream: TextIO | None) -> bool:
    """Whether a stream writes to the process's standard error; a notebook's does not."""
    try:
        return stream is not None and stream.fileno() == 2
    except (OSError, ValueError):
        return False


def _log_handlers(directory: Path | None, num_ranks: int, pipe: int) -> list[logging.Handler]:
    """Runs in torchrunx's log process: a file per rank, and events to the launcher."""
    from torchrunx.utils.log_handling import file_handlers

    die_with_parent()
    handlers: list[logging.Handler] = [EventHandler(lambda event: _write_line(pipe, event))]
    if directory is not None:
        handlers += file_handlers(["localhost"], [num_ranks], log_dir=directory, log_level=logging.INFO)
    return handlers


def _write_line(fd: int, event: Event) -> None:
    os.write(fd, (json.dumps(event) + "\n").encode())
