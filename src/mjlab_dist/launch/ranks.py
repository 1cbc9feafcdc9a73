"""Several ranks through torchrunx: started, listened to, ended. The only module that imports torchrunx."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mjlab_dist import runs
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import DevicePlan
from mjlab_dist.errors import RankError, UserError
from mjlab_dist.launch.processes import end_children
from mjlab_dist.worker import RunResult, die_with_parent, run_or_die, start_up

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


def run_ranks(
    config: TrainConfig, plan: DevicePlan, run_dir: Path, listen: Callable[[dict[str, Any]], None]
) -> RunResult:
    """Train on several ranks of this machine and wait for them.

    Args:
        config: The run's config.
        plan: A device per rank.
        run_dir: The run directory.
        listen: Called, in a thread of its own, with what ranks tell the console: ``kind`` is ``status``, ``iteration`` or
            ``warning``.

    Raises:
        RankError: If a rank ended early.
        UserError: If it ended because of something that the user can mend.
    """
    with start_up():
        import torchrunx

    extra = {} if plan.visible is None else {"CUDA_VISIBLE_DEVICES": plan.visible}
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
            return launcher.run(run_or_die, config, plan, run_dir).rank(0)
        except Exception as error:
            raise _first_failure(run_dir, len(plan.devices), errors, error) from error
        finally:
            end_children()  # torchrunx tells its agent to end, and does not wait until it has


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
def _event_pipe(listen: Callable[[dict[str, Any]], None]) -> Iterator[int]:
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
        reader.join(timeout=5)


@contextlib.contextmanager
def _child_errors() -> Iterator[IO[str]]:
    """Send what child processes print as errors to a file: torchrunx kills an agent that may have ended, and `kill` complains.

    Python's own sys.stderr keeps writing to the console.
    """
    console = os.dup(2)
    python_stderr = sys.stderr
    with tempfile.TemporaryFile("w+", errors="replace") as file, os.fdopen(os.dup(2), "w", buffering=1) as stderr:
        os.dup2(file.fileno(), 2)
        sys.stderr = stderr
        try:
            yield file
        finally:
            sys.stderr = python_stderr
            os.dup2(console, 2)
            os.close(console)


class _EventHandler(logging.Handler):
    """In torchrunx's log process: passes events of any rank to the launcher."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def emit(self, record: logging.LogRecord) -> None:
        event: dict[str, Any] | None = getattr(record, "event", None)
        if event is None:
            return
        if event["kind"] == "warning":
            event = {**event, "text": f"rank {record.__dict__['local_rank']}: {event['text']}"}
        os.write(self._fd, (json.dumps(event) + "\n").encode())


def _log_handlers(directory: Path | None, num_ranks: int, pipe: int) -> list[logging.Handler]:
    """Runs in torchrunx's log process: a file per rank, and events to the launcher."""
    from torchrunx.utils.log_handling import file_handlers

    die_with_parent()
    handlers: list[logging.Handler] = [_EventHandler(pipe)]
    if directory is not None:
        handlers += file_handlers(["localhost"], [num_ranks], log_dir=directory, log_level=logging.INFO)
    return handlers
