"""Functions with which the benchmarks run training commands and measure their times."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent

SKIPPED = 3
"""Number of iterations at the start that are not timed, because they warm up caches."""


@dataclass
class Timed:
    """Timing of one run."""

    steps_per_s: float
    """Env-steps per second of all ranks together: median over the iterations after the first ones (`SKIPPED`)."""
    rollout_steps_per_s: float
    """Env-steps per second of the rollouts alone, without the updates of the policy: median as above."""
    first_iteration_s: float
    """Time from the start of the command to the end of the first training iteration, in s."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a timed command. It hides GPUs, and lacks variables that slow down the start."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", **(extra or {})}


def run_ours(*flags: str, env: Mapping[str, str] | None = None, task: str = "cartpole-balance") -> Timed:
    """Train a task.

    Args:
        flags: Flags of ``train``.
        env: Additional environment variables.
        task: Name of the task.
    """
    with tempfile.TemporaryDirectory() as root:
        command = [str(BIN / "train"), task, *flags, "--log-root", root]
        first_s, _ = run(command, r"iteration 1/", env=clean_environment(env), cwd=root)
        (metrics,) = Path(root).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rollouts = [rows[0]["total_steps"] / row["collect_s"] for row in rows]
    return Timed(settled([row["steps_per_s"] for row in rows]), settled(rollouts), first_s)


def settled(values: Sequence[float]) -> float:
    """Return the median over the iterations after the first ones (`SKIPPED`)."""
    return statistics.median(values[SKIPPED:] or values)


def run(command: Sequence[str], first: str, *, env: Mapping[str, str], cwd: str) -> tuple[float, list[str]]:
    """Run a command. Return the seconds until it printed a line that matches ``first``, and all lines of its output."""
    start = time.monotonic()
    first_s = None
    lines: list[str] = []
    process = subprocess.Popen(
        command, env=dict(env), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if first_s is None and re.search(first, line):
            first_s = time.monotonic() - start
    if process.wait() or first_s is None:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines[-20:])}")
    return first_s, lines


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median with minimum and maximum as text."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
