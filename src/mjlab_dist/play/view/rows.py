"""Read files of metrics while another process writes them.

Each read returns only the rows that are new. For the curves, at most :data:`MAX_POINTS` rows of a file are kept.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from mjlab_dist.runs import run_files
from mjlab_dist.wording import printable

# A row of metrics.jsonl or rank_metrics.jsonl: iteration, a positive int, and numbers. A value that is missing, or is
# no finite number, is None.
Row = dict[str, Any]

# Maximum absolute values of numbers in rows, which calculations with them do not overflow
MAX_ITERATION, MAX_NUMBER = 10**15, 1e100

# Maximum number of rows that are kept for a curve
MAX_POINTS = 500

# Maximum number of bytes that are read at a time
CHUNK = 1 << 22


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
