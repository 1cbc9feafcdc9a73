"""The id of the Weights & Biases run that belongs to a run directory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mjlab_dist.runs.atomic import write_atomically
from mjlab_dist.runs.run_files import read_file

WANDB_FILE = "wandb.json"


@dataclass(frozen=True, kw_only=True)
class WandbRun:
    """A run of Weights & Biases."""

    # User or team that owns the run; None until Weights & Biases has returned it
    entity: str | None = None
    project: str
    # Id of the run, unique in the project
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


def write_wandb_run(run_dir: Path, run: WandbRun) -> None:
    """Write the id of the Weights & Biases run."""
    write_atomically(run_dir / WANDB_FILE, json.dumps(dataclasses.asdict(run)) + "\n")


def read_wandb_run(run_dir: Path) -> WandbRun | None:
    """Return the Weights & Biases run of a run directory; None if there is none, or the file is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        run = WandbRun(**json.loads(read_file(run_dir, WANDB_FILE)))
        if isinstance(run.id, str) and isinstance(run.project, str) and isinstance(run.entity, str | None):
            return run
    return None


def find_wandb_run(run_dirs: Iterable[Path], path: str) -> Path | None:
    """Return the first run directory of a Weights & Biases run; None if there is none."""
    entity, project, run_id = path.split("/")
    for run_dir in run_dirs:
        run = read_wandb_run(run_dir)
        if run and (run.id, run.project) == (run_id, project) and run.entity in {None, entity}:
            return run_dir
    return None
