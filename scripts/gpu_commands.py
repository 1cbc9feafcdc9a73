"""Run commands for the GPU report.

Each command runs in its own session and with a time limit. After it, all processes that it has left behind are killed.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mjlab_dist.machine.processes import die_with_parent
from mjlab_dist.run_dir import METRICS_FILE

ROOT = Path(__file__).resolve().parents[1]
"""Root of the repository."""

MARK = "MJLAB_DIST_GPU_REPORT"
"""Environment variable that identifies the processes of a command: all of them inherit it, even in other sessions."""

TAIL_LINES = 30
"""Number of lines from the end of a failed command's output that the results contain."""

STOP_GRACE_S = 60.0
"""Time to wait until a training run has saved a checkpoint, after it received SIGTERM at its time limit, in s."""

LEFT_OUT = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "TORCHRUNX_LOG_DIR",
    "MJLAB_DIST_FAULT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_STEP_NUM_TASKS",
)
"""Environment variables that commands do not inherit, because they slow down start-up or change what a command does."""


class PartError(RuntimeError):
    """A part of the report failed. The message is shown on the page."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Result of a command."""

    code: int
    """Exit code; -N if signal N ended the command."""
    seconds: float
    """Duration of the command."""
    first_s: float | None
    """Seconds from the start of the command until a line of the output matched the pattern ``first`` of
    :meth:`Commands.run`. None if no line matched."""
    lines: list[str]
    """Last 20,000 lines of the output, stdout and stderr together."""
    timed_out: bool
    """Whether the command ran longer than its time limit."""
    left: list[str]
    """Names of the processes that still ran after the command had ended, and were therefore killed."""

    @property
    def tail(self) -> str:
        """End of the output."""
        return "\n".join(self.lines[-TAIL_LINES:])

    @property
    def warnings(self) -> list[str]:
        """Warnings that the command printed."""
        return list(dict.fromkeys(line for line in self.lines if line.startswith("Warning:")))

    def check(self, name: str, *codes: int) -> None:
        """Raise unless the command ended with one of these exit codes.

        Args:
            name: Name of the command, for the message.
            codes: Accepted exit codes. Default: 0.

        Raises:
            PartError: If the exit code is a different one. The message contains the end of the output.
        """
        if self.code not in (codes or (0,)):
            how = "ran past its time limit" if self.timed_out else f"ended with exit code {self.code}"
            raise PartError(f"{name} {how}:\n{self.tail}")


@dataclass(kw_only=True)
class Commands:
    """Runs commands, and saves their output in files."""

    logs: Path
    """Directory of the files."""
    on_cpu: bool
    """Whether GPUs are hidden from all commands."""
    deadline: float = math.inf
    """Time of ``time.monotonic()`` at which every command must have ended."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(
        self,
        args: Sequence[str | Path],
        *,
        limit_s: float,
        name: str,
        first: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str = ROOT,
        stops: bool = False,
    ) -> Ended:
        """Run a command until it ends or reaches its time limit, and kill the processes that it leaves behind.

        Args:
            args: Command line.
            limit_s: Seconds after which the command is killed with all its processes.
            name: Beginning of the name of the command's log file.
            first: Regular expression. The time until the first line of the output that matches it is measured.
            env: Additional environment variables.
            cwd: Working directory.
            stops: Whether the command saves its work after SIGTERM. If so, it receives SIGTERM before it is killed.

        Raises:
            PartError: If the command cannot be started, or no time is left.
        """
        mark = uuid.uuid4().hex
        start = time.monotonic()
        limit_s = min(limit_s, self.deadline - start)
        if limit_s <= 0:
            raise PartError(f"{name}: not started, because no time is left for this part of the report")
        process = _start(args, {**self._environment(), **(env or {}), MARK: mark}, cwd)
        self.logs.mkdir(parents=True, exist_ok=True)
        reader = _Reader(process, self.logs / f"{name}-{next(self._numbers)}.txt", start, first)
        timed_out = False
        try:
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
                if stops:
                    process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(STOP_GRACE_S)
            seconds = time.monotonic() - start
        finally:
            has_ended = process.poll() is not None
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a hanging driver keeps a killed process alive
                process.wait(10)
            # Wait a moment, so that processes that end soon after the command do not count as left behind.
            left = kill_marked(mark, grace_s=2.0 if has_ended else 0.0)
            reader.join(10)
        return Ended(
            code=-signal.SIGKILL if process.returncode is None else process.returncode,
            seconds=seconds,
            first_s=reader.first_s,
            lines=list(reader.lines),
            timed_out=timed_out,
            left=left if has_ended else [],
        )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.on_cpu else {}
        return {**kept, **hidden, "COLUMNS": "200", "WANDB_MODE": "offline", "PYTHONFAULTHANDLER": "1"}


def _start(args: Sequence[str | Path], env: Mapping[str, str], cwd: Path | str) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            [str(arg) for arg in args],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (no other thread runs at this time)
        )
    except OSError as error:
        raise PartError(f"{args[0]} cannot be started: {error.strerror}") from error


class _Reader(threading.Thread):
    """Reads what a command prints."""

    def __init__(self, process: subprocess.Popen[str], log: Path, start: float, first: str | None) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None
        self.lines: collections.deque[str] = collections.deque(maxlen=20_000)
        self.first_s: float | None = None
        self._output, self._log, self._start, self._first = process.stdout, log, start, first
        self.start()

    def run(self) -> None:
        with self._log.open("w") as log:
            for line in self._output:
                log.write(line)
                self.lines.append(line.rstrip("\n"))
                if self._first and self.first_s is None and re.search(self._first, line):
                    self.first_s = time.monotonic() - self._start


def kill_marked(mark: str, grace_s: float) -> list[str]:
    """Kill all processes that inherited a mark.

    Args:
        mark: Value of :data:`MARK`.
        grace_s: Seconds to wait for processes that end by themselves.

    Returns:
        Names of the processes that were killed.
    """
    psutil.wait_procs(_find_marked(mark), timeout=grace_s)
    killed: list[str] = []
    # Search repeatedly, because a process may start another one during a search.
    for _ in range(5):
        left = _find_marked(mark)
        if not left:
            break
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=5)
        killed += [process.info["name"] for process in left]
    return killed


def _find_marked(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter(["name"]) if _has_mark(process, mark)]


def _has_mark(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except psutil.Error:
        return False


def installed(name: str) -> list[str]:
    """Return the command line of one of this package's commands.

    Args:
        name: ``train`` or ``mjlab-dist``.
    """
    path = Path(sys.executable).parent / name
    if path.is_file():
        return [str(path)]
    # If the package is only found through PYTHONPATH, it has no installed script: call the script's function.
    function = {"train": "train", "mjlab-dist": "umbrella"}[name]
    return [sys.executable, "-c", f"from mjlab_dist.cli.main import {function}; {function}()"]


@contextlib.contextmanager
def temporary_log_root(data: Path) -> Iterator[Path]:
    """Make a temporary directory for runs that are needed only for their metrics.

    Args:
        data: Directory of the report's data. The temporary directory is inside it, because /tmp may lack space.
    """
    data.mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="runs-", dir=data)).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def only_run(log_root: Path) -> Path:
    """Return the directory of the run in a log root that is used for one run only.

    Raises:
        PartError: If no run has metrics.
    """
    found = sorted(path.parent for path in log_root.glob(f"*/*/{METRICS_FILE}"))
    if not found:
        raise PartError("the training command succeeded, but its run has no metrics")
    return found[-1]
