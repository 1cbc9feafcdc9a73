"""Runs of training commands, timed from outside; shared by the benchmarks beside it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent

PEER_TASK = "Mjlab-Cartpole-Balance"

LIKE_PEER = ("--env.sim.decimation", "5", "--env.episode-length-s", "50", "--agent.num-steps-per-env", "32")
"""Flags that give cartpole-balance the substeps, episode and rollout of the peer's task; network and PPO are the same."""

SKIPPED = 3
"""Iterations left out at the start: they warm caches."""


@dataclass
class Timed:
    """One run."""

    steps_per_s: float
    """Median over iterations, of all ranks together."""
    first_iteration_s: float
    """Seconds from the command to the end of its first iteration."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a timed command: bytecode may be written, nothing else that slows start-up."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")}
    return {**kept, "CUDA_VISIBLE_DEVICES": "", **(extra or {})}


def run_ours(*flags: str, cores: set[int] | None = None, env: Mapping[str, str] | None = None) -> Timed:
    """Train cartpole-balance with flags, on some of the cores.

    Args:
        flags: Flags of ``train``.
        cores: Cores that the command may use; all by default.
        env: Further environment variables.
    """
    with tempfile.TemporaryDirectory() as root, _on_cores(cores):
        command = [str(BIN / "train"), "cartpole-balance", *flags, "--log-root", root]
        first_s, _ = _run(command, r"iteration 1/", env=clean_environment(env), cwd=root)
        (metrics,) = Path(root).rglob("metrics.jsonl")
        speeds = [json.loads(line)["steps_per_s"] for line in metrics.read_text().splitlines()]
    return Timed(statistics.median(speeds[SKIPPED:] or speeds), first_s)


def run_peer(python: Path, num_envs: int, iterations: int) -> Timed:
    """Train the peer's cartpole on the CPU.

    Args:
        python: The interpreter of the virtual environment that holds mjlab.
        num_envs: Envs.
        iterations: Iterations.
    """
    with tempfile.TemporaryDirectory() as cwd:
        command = [
            str(python.parent / "train"), PEER_TASK, "--gpu-ids", "None", "--env.scene.num-envs", str(num_envs),
            "--agent.max-iterations", str(iterations), "--agent.logger", "tensorboard",
        ]  # fmt: skip
        first_s, lines = _run(command, r"Iteration time:", env=clean_environment(), cwd=cwd)
    speeds = [float(m[1]) for line in lines if (m := re.search(r"Steps per second: +([\d.]+)", line))]
    return Timed(statistics.median(speeds[SKIPPED:] or speeds), first_s)


def _run(command: Sequence[str], first: str, *, env: Mapping[str, str], cwd: str) -> tuple[float, list[str]]:
    """Run a command to its end; seconds until it printed a line that matches ``first``, and all its lines."""
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


@contextlib.contextmanager
def busy(programs: int) -> Iterator[None]:
    """Run a number of programs that compute all the time, inside."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _on_cores(cores: set[int] | None) -> Iterator[None]:
    """Keep what is started inside to some cores."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or all_cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median with least and greatest, as one figure."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"
