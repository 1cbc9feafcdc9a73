"""A logger that slows down a training while a test waits for something else: training takes CPU time of other tests."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import mjlab_dist

FILE = "slow"
"""While this file is in the run's working directory, training is slow. It may contain a number of seconds."""

SLOW_S = 0.2
"""Seconds that an iteration then takes at least, if the file is empty."""


class Slow(mjlab_dist.Logger):
    """Wait in each iteration."""

    def log(self, row: Mapping[str, float], step: int) -> None:  # noqa: ARG002
        if Path(FILE).exists():
            time.sleep(float(Path(FILE).read_text() or SLOW_S))
