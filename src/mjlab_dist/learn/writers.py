"""Write rows of metrics to metrics.jsonl, and to the loggers of ``--logger``. Only rank 0 writes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn.checkpoint import CheckpointStore
from mjlab_dist.learn.loggers.all_loggers import LoggerGroup
from mjlab_dist.learn.metrics import Row
from mjlab_dist.runs.run_dir import METRICS_FILE, RANK_METRICS_FILE, cut_metrics


class Writer(Protocol):
    """A destination of rows."""

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Write one row."""

    def close(self) -> None:
        """Finish writing. :meth:`write` is not called after this."""


class JsonlWriter:
    """metrics.jsonl and rank_metrics.jsonl: one JSON object per line, complete after every iteration."""

    def __init__(self, run_dir: Path, resumed_at: int | None) -> None:
        """Open metrics.jsonl. In a resumed run, remove the rows after the iteration of its checkpoint."""
        if resumed_at is not None:
            for name in (METRICS_FILE, RANK_METRICS_FILE):
                cut_metrics(run_dir, resumed_at, name)
        self._file = (run_dir / METRICS_FILE).open("a", buffering=1)
        self._path_of_ranks = run_dir / RANK_METRICS_FILE

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:
        """Append the row of an iteration to metrics.jsonl, and the rows of the ranks to rank_metrics.jsonl."""
        self._file.write(_line_of(row))
        if ranks:
            with self._path_of_ranks.open("a") as file:
                file.write("".join(map(_line_of, ranks)))

    def close(self) -> None:
        """Close metrics.jsonl."""
        self._file.close()


class CheckpointWriter:
    """Passes checkpoints to the loggers, which must be closed later, after the files are on disk."""

    def __init__(self, store: CheckpointStore, loggers: LoggerGroup) -> None:
        self._store = store
        store.receive = loggers.checkpoint

    def write(self, row: Row, ranks: Sequence[Row] = ()) -> None:  # noqa: ARG002 (only the loggers write rows)
        """Pass the checkpoints that were written since the last row to the loggers."""
        self._store.pass_on()

    def close(self) -> None:
        """Wait for the last checkpoint, and pass it to the loggers."""
        self._store.wait()


def writers(config: TrainConfig, run_dir: Path, resumed_at: int | None) -> tuple[JsonlWriter, LoggerGroup]:
    """Create the writers of a run, for rank 0: metrics.jsonl, and the loggers.

    ``resumed_at`` is the iteration of the checkpoint, 0 if a resumed run has none, and None for a new run.
    """
    return JsonlWriter(run_dir, resumed_at), LoggerGroup(config, run_dir, resumed_at)


def _line_of(row: Row) -> str:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
