"""Example of a logger: it writes the mean return and the speed of every iteration to a CSV file in the run directory.

Run it with::

  PYTHONPATH=docs/examples uv run train cartpole-balance --logger tensorboard csv_logger:CsvLogger
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import mjlab_dist
from mjlab_dist.config import TrainConfig

COLUMNS = ("train/mean_return", "perf/steps_per_s")


class CsvLogger(mjlab_dist.Logger):
    """Writes returns.csv. A run that is resumed appends its new rows to this file."""

    def __init__(self, run_dir: Path, config: TrainConfig, resumed_at: int | None) -> None:  # noqa: ARG002
        self._file = (run_dir / "returns.csv").open("a", newline="")
        self._csv = csv.writer(self._file)
        if resumed_at is None:
            self._csv.writerow(["iteration", *COLUMNS])

    def log(self, row: Mapping[str, float], step: int) -> None:
        self._csv.writerow([step, *(row.get(name) for name in COLUMNS)])

    def close(self) -> None:
        self._file.close()
