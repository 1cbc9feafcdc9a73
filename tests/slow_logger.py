"""A logger that slows down a training run while its test waits, so that other tests have more CPU time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import mjlab_dist

FILE = "slow"
"""Training is slow while this file is in the run's working directory. It may contain the seconds per iteration."""

SLOW_S = 0.2
"""Minimum seconds per iteration while training is slow, if the file is empty."""


class Slow(mjlab_dist.Logger):
    """Wait in each iteration while the file exists."""

    def log(self, row: Mapping[str, float], step: int) -> None:  # noqa: ARG002
        if Path(FILE).exists():
            time.sleep(float(Path(FILE).read_text() or SLOW_S))
