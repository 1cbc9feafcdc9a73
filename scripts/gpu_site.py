"""Short training runs and measurements for the parts of the GPU report."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_commands import Commands, Ended, PartError, installed, only_run, temporary_log_root
from gpu_sizes import Sizes
from timed import SKIPPED

from mjlab_dist.run_dir import read_metrics

Data = dict[str, Any]
"""Figures of a part, as values that JSON can store."""

TRAIN_LIMIT_S = 180.0
"""Time limit of a short training run in s."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Sizes, devices and directories for the parts of the report."""

    sizes: Sizes
    """Sizes of the measurements."""
    num_gpus: int
    """Number of usable GPUs; 0 in a dry run."""
    data: Path
    """Directory for all files that the report writes, except the page and its pictures."""
    commands: Commands
    """Runner of commands."""
    peer_python: Path | None
    """Python interpreter of an environment with mjlab."""
    continues: bool
    """Whether a part that trains a policy resumes the training run of its earlier attempt."""

    @property
    def device(self) -> str:
        """Device of a single rank."""
        return "cuda:0" if self.num_gpus else "cpu"

    def ranks(self, count: int) -> tuple[str, ...]:
        """Return the flags of `train` for a number of ranks, with one GPU each if there are GPUs."""
        if self.num_gpus:
            return ("--gpu-ids", *map(str, range(count)))
        return ("--gpu-ids", "None") if count == 1 else ("--cpu-ranks", str(count))

    def train(
        self, task: str, *flags: str, name: str, limit_s: float = TRAIN_LIMIT_S, ranks: int = 1, **options: Any
    ) -> Ended:
        """Run `train`. Pass `options` on to :meth:`Commands.run`."""
        args = [*installed("train"), task, *self.ranks(ranks), *flags]
        return self.commands.run(args, limit_s=limit_s, name=name, **options)

    def measure(self, script: str, *args: str, name: str) -> Data:
        """Run another script of this directory and return the JSON object that it printed."""
        path = Path(__file__).with_name(script)
        ended = self.commands.run([sys.executable, path, *args], limit_s=TRAIN_LIMIT_S, name=name)
        ended.check(name)
        return last_json(ended)


def last_json(ended: Ended) -> Data:
    """Return the last JSON object that a command printed on a line of its own.

    Raises:
        PartError: If there is none.
    """
    for line in reversed(ended.lines):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    raise PartError(f"no figures were printed:\n{ended.tail}")


def finish(failures: Sequence[str]) -> None:
    """Raise an error that lists all failures, if there are any.

    Raises:
        PartError: With all failures.
    """
    if failures:
        raise PartError("\n".join(failures))


def train_briefly(
    site: Site, task: str, num_envs: int, capture: str | None, *flags: str, name: str, ranks: int = 1
) -> Data:
    """Train for some iterations. Return the figures of :func:`summarize`, the capture mode, warnings and duration.

    Args:
        site: Sizes, devices and directories.
        task: Name of the task.
        num_envs: Envs per rank.
        capture: Value of `--env.sim.capture`; None for the task's default.
        flags: Additional flags.
        name: Name of the log file.
        ranks: Number of ranks.

    Raises:
        PartError: If the training fails.
    """
    with temporary_log_root(site.data) as root:
        ended = site.train(
            task,
            *("--num-envs", str(num_envs), "--max-iterations", str(site.sizes.iterations), "--log-root", str(root)),
            *(("--env.sim.capture", capture) if capture else ()),
            *flags,
            name=name,
            ranks=ranks,
        )
        ended.check(f"{task} with {num_envs} envs, {capture or 'default'} capture")
        figures = summarize(read_metrics(only_run(root)), num_envs * ranks)
    return {**figures, "capture": capture, "warnings": ended.warnings, "command_s": ended.seconds}


def summarize(rows: list[Data], num_envs: int) -> Data:
    """Return the speed, the times and other figures of a run.

    Only the number of envs that overflowed includes the first iterations, which warm up caches.

    Args:
        rows: Rows of metrics.jsonl.
        num_envs: Envs over all ranks.
    """
    warm = rows[SKIPPED:] or rows[-1:]
    before = rows[-len(warm) - 1] if len(rows) > len(warm) else None
    wall_s = rows[-1]["elapsed_s"] - (before["elapsed_s"] if before else 0.0)
    steps = rows[-1]["total_steps"] - (before["total_steps"] if before else 0)
    speeds = [row["steps_per_s"] for row in warm]
    return {
        "num_envs": num_envs,
        "iterations": len(warm),
        "steps_per_env": rows[0]["total_steps"] // (rows[0]["iteration"] * num_envs),
        "steps_per_s": statistics.median(speeds),
        "min_steps_per_s": min(speeds),
        "max_steps_per_s": max(speeds),
        "wall_steps_per_s": steps / wall_s,
        **{name: statistics.median(row[name] for row in warm) for name in ("collect_s", "learn_s", "wait_s")},
        "overflowed_envs": max(row["overflowed_envs"] for row in rows),
    }
