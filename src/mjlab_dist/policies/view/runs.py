"""Read the progress, the checkpoints and the state of runs from files that another process or machine writes.

Nothing is written. The files may be copies, or on a network file system. Each read of metrics returns only the rows
that are new. For the curves, at most :data:`MAX_POINTS` rows of a file are kept.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mjlab_dist.errors import printable
from mjlab_dist.policies.view.gate import guarded
from mjlab_dist.runs import run_files
from mjlab_dist.runs.lease import Held, LeaseWatch
from mjlab_dist.runs.run_dir import CONFIG_FILE, METRICS_FILE, RANK_METRICS_FILE, list_checkpoints, list_runs
from mjlab_dist.runs.run_files import open_file

# A row of metrics.jsonl or rank_metrics.jsonl: iteration, a positive int, and numbers. A value that is missing, or is
# no finite number, is None.
Row = dict[str, Any]

# Maximum absolute values of numbers in rows, which calculations with them do not overflow
MAX_ITERATION, MAX_NUMBER = 10**15, 1e100

# Maximum number of rows that are kept for a curve
MAX_POINTS = 500

# Maximum number of bytes that are read at a time
CHUNK = 1 << 22

# State of a run. lost: the processes that train the run were killed, or no longer renew its lease (the file that shows
# that they are alive). unknown: the lease could not be read, or was not watched for long enough. unreadable: a file is
# damaged.
State = Literal["running", "finished", "stopped", "lost", "unknown", "unreadable"]

# The texts that describe the states
STATES: dict[State, str] = {
    "running": "running",
    "finished": "finished",
    "stopped": "stopped before its last iteration",
    "lost": "lost (its launch has ended or is suspended, or this directory is a copy)",
    "unknown": "not known yet whether it is running",
    "unreadable": "unreadable (one of its files is damaged)",
}

# Maximum number of runs in a list. Older runs are left out.
MAX_LISTED = 50

# Number of bytes to read at the end of a file of metrics, enough for its last two rows
TAIL_BYTES = 1 << 16


class New(NamedTuple):
    """Result of reading new rows of a file."""

    # Complete rows that are new since the last read
    rows: list[Row]
    # Whether earlier rows are no longer in the file, so that the whole file is read again
    is_cut: bool
    # Whether all complete rows have been returned; otherwise the next read returns more
    is_complete: bool


class RowReader:
    """Reads the rows that a run appends.

    Resuming the run truncates or replaces the file. While the run writes a row, the last row is incomplete.
    """

    def __init__(self, path: Path) -> None:
        """Start before the first row."""
        self._path = path
        self._offset, self._last_line = 0, b""

    def read(self) -> New:
        """Return the new rows; no rows if the file cannot be read. Damaged rows are skipped."""
        # Read the last line again, to detect a file that was truncated and has grown since then.
        try:
            with run_files.open_file(self._path) as file:
                file.seek(self._offset - len(self._last_line))
                data = file.read(len(self._last_line) + CHUNK)
                is_cut = not data.startswith(self._last_line)
                if is_cut:
                    file.seek(0)
                    self._offset, self._last_line = 0, b""
                    data = file.read(CHUNK)
        except OSError:
            return New([], is_cut=False, is_complete=True)
        fresh = data[len(self._last_line) :]
        lines = fresh[: fresh.rfind(b"\n") + 1].splitlines(keepends=True)
        if lines:
            self._offset += sum(map(len, lines))
            self._last_line = lines[-1]
        rows = [row for line in lines if (row := parse_row(line)) is not None]
        return New(rows, is_cut=is_cut, is_complete=len(fresh) < CHUNK or not lines)


def parse_row(line: bytes) -> Row | None:
    """Parse a line of metrics. Return its row, or None if the line is damaged."""
    row = run_files.parse_row(line)
    if row is None or not 0 < row["iteration"] <= MAX_ITERATION:
        return None
    return {printable(name): value if abs(value or 0) <= MAX_NUMBER else None for name, value in row.items()}


class History:
    """At most :data:`MAX_POINTS` rows of a file at equal intervals, and its two newest rows."""

    def __init__(self) -> None:
        """Start without rows."""
        self.newest: Row | None = None
        self.before: Row | None = None
        self._kept: list[Row] = []
        self._stride, self._num_rows = 1, 0

    def add(self, row: Row) -> None:
        """Add a row. It replaces rows of the same and later iterations, because a resumed run repeats iterations."""
        if self.newest is not None and row["iteration"] <= self.newest["iteration"]:
            self._kept = [kept for kept in self._kept if kept["iteration"] < row["iteration"]]
            self.newest = self._kept[-1] if self._kept else None
        if self._num_rows % self._stride == 0:
            self._kept.append(row)
        self._num_rows += 1
        self.before, self.newest = self.newest, row
        if len(self._kept) > MAX_POINTS - 1:
            self._kept = self._kept[::2]
            self._stride *= 2

    @property
    def rows(self) -> list[Row]:
        """Rows for curves, oldest first. The last one is the newest row."""
        if self.newest is None or (self._kept and self._kept[-1] is self.newest):
            return self._kept
        return [*self._kept, self.newest]

    def column(self, name: str) -> list[float]:
        """Return the values of a column in :attr:`rows`; NaN for rows without a value."""
        return [math.nan if (value := row.get(name)) is None else float(value) for row in self.rows]


class Length(NamedTuple):
    """Length of a run according to its config."""

    # Name of the task
    task: str
    # Iterations of the whole run; None if the config gives steps instead, or if the number is not known
    max_iterations: int | None
    # Steps of the whole run, over all envs and ranks
    total_timesteps: int | None

    def iterations(self, newest: Row | None, before: Row | None) -> int | None:
        """Return the number of iterations of the whole run; None if it is not known yet."""
        if self.total_timesteps is None or newest is None:
            return self.max_iterations
        # As in the runner: divide the remaining steps by the current number of steps per iteration
        now, start = (int((row or {}).get("total_steps") or 0) for row in (newest, before))
        per_iteration = (now - start) // max(1, newest["iteration"] - (before or {"iteration": 0})["iteration"])
        return newest["iteration"] + max(0, self.total_timesteps - now) // max(1, per_iteration)


def read_length(run_dir: Path) -> Length:
    """Read only the task and the length of a run from its config."""
    text = ""
    with contextlib.suppress(OSError), open_file(run_dir / CONFIG_FILE) as file:
        text = file.read(1 << 20).decode(errors="replace")
    found = dict(re.findall(r"^(task|max_iterations|total_timesteps): *['\"]?(.+?)['\"]?$", text, re.MULTILINE))
    steps, task = _whole(found.get("total_timesteps")), printable(found.get("task", "?"))[:100]
    return Length(task, None if steps else _whole(found.get("max_iterations")), steps)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 15 else None


def state_of(held: Held, newest: Row | None, iterations: int | None) -> State:
    """Return the state of a run."""
    is_done = newest is not None and iterations is not None and newest["iteration"] >= iterations
    if held == "no":
        return "finished" if is_done else "stopped"
    return "running" if held == "yes" else held


class Run:
    """A run that this process follows."""

    def __init__(self, run_dir: Path, now: Callable[[], float] = time.monotonic) -> None:
        """Read the files for the first time."""
        self.run_dir = run_dir
        self._lease = LeaseWatch(run_dir, now)
        self._metrics, self._rank_metrics = RowReader(run_dir / METRICS_FILE), RowReader(run_dir / RANK_METRICS_FILE)
        self.task, self.state = "?", "unknown"
        self.state: State
        self.iterations: int | None = None  # not known
        self.history, self.ranks = History(), dict[float, History]()  # no ranks without --log-ranks
        self.checkpoints: dict[int, Path] = {}
        self.look()

    def look(self) -> bool:
        """Read all files. Return whether a file of metrics has more rows than were read."""
        self.state = "unreadable"  # unless all files can be read
        with guarded():
            # Read the lease before the rows. A launch writes its last row before it releases the lease. If the lease
            # has been released, the rows that are read after it therefore include the last one.
            held = self._lease.look()
            length = read_length(self.run_dir)
            metrics, of_ranks = self._metrics.read(), self._rank_metrics.read()
            if metrics.is_cut:
                self.history = History()
            for row in metrics.rows:
                self.history.add(row)
            if of_ranks.is_cut:
                self.ranks = {}
            for row in of_ranks.rows:
                self.ranks.setdefault(row.get("rank") or 0, History()).add(row)
            self.task = length.task
            self.iterations = length.iterations(self.history.newest, self.history.before)
            with contextlib.suppress(OSError):  # keep the list if a network file system does not answer
                self.checkpoints = list_checkpoints(self.run_dir)
            self.state = state_of(held, self.history.newest, self.iterations)
            return not (metrics.is_complete and of_ranks.is_complete)
        return False

    @property
    def progress(self) -> str:
        """Iteration, time left and speed, in words."""
        row = self.history.newest
        if row is None:
            return "no iteration yet"
        parts = [f"iteration {row['iteration']:,}" + (f" of {self.iterations:,}" if self.iterations else "")]
        if self.state == "running" and self.iterations and row.get("elapsed_s") is not None:
            left_s = row["elapsed_s"] / row["iteration"] * max(0, self.iterations - row["iteration"])
            parts.append(f"{datetime.timedelta(seconds=round(min(max(0.0, left_s), 1e9)))} left")
        if row.get("steps_per_s") is not None:
            parts.append(f"{row['steps_per_s']:,.0f} steps/s")
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A run in a list."""

    run_dir: Path
    task: str
    # State of the run
    state: State
    # Newest iteration of the run
    iteration: int | None
    # Mean return in this iteration
    mean_return: float | None


class RunList:
    """The newest runs of all tasks. Files that have not changed are not read again."""

    def __init__(self, log_root: str, now: Callable[[], float] = time.monotonic) -> None:
        """Start without reading files."""
        self._log_root, self._now = log_root, now
        self._leases: dict[Path, LeaseWatch] = {}
        self._read: dict[Path, tuple[tuple[int, ...], Length, Sequence[Row]]] = {}

    def look(self, also: Path) -> list[Listed]:
        """Return the runs, newest first."""
        found = list_runs(self._log_root)[: -MAX_LISTED - 1 : -1]
        if also.resolve() not in {path.resolve() for path in found}:
            found.insert(0, also)
        return [self._listed(run_dir) for run_dir in found]

    def _listed(self, run_dir: Path) -> Listed:
        with guarded():
            held = self._leases.setdefault(run_dir, LeaseWatch(run_dir, self._now)).look()
            # Length and last two rows, read again if a file has changed
            stamp = (*stamp_of(run_dir / CONFIG_FILE), *stamp_of(run_dir / METRICS_FILE))
            if self._read.get(run_dir, ((),))[0] != stamp:
                self._read[run_dir] = (stamp, read_length(run_dir), _last_rows(run_dir / METRICS_FILE))
            _, length, rows = self._read[run_dir]
            before, newest = [None, None, *rows][-2:]
            return Listed(
                run_dir=run_dir,
                task=length.task,
                state=state_of(held, newest, length.iterations(newest, before)),
                iteration=newest["iteration"] if newest is not None else None,
                mean_return=newest.get("mean_return") if newest is not None else None,
            )
        return Listed(run_dir=run_dir, task="?", state="unreadable", iteration=None, mean_return=None)


def stamp_of(file: Path) -> tuple[int, int]:
    """Return the modification time of a file in ns and its size in bytes; zeros if there is no such file."""
    try:
        stat = file.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


def _last_rows(file: Path) -> list[Row]:
    """Return the last two complete rows of a file of metrics."""
    try:
        with open_file(file) as opened:
            opened.seek(0, 2)
            opened.seek(max(0, opened.tell() - TAIL_BYTES))
            lines = opened.read().splitlines(keepends=True)
    except OSError:
        return []
    rows = [row for line in lines[-4:] if line.endswith(b"\n") and (row := parse_row(line)) is not None]
    return rows[-2:]
