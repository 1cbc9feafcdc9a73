"""``--resume auto``: resume the run with a given name, or start a new run. Imports the standard library only."""

from __future__ import annotations

import re
from pathlib import Path

from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.runs.run_dir import CONFIG_FILE, by_start, list_checkpoints

# Value of --resume that requests this search by name
AUTO = "auto"

# Matches the directory name of a run with --run-name
_NAME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(?:-\d+)?_(.+)")


def find_named_run(log_root: str, task: str, run_name: str) -> Path | None:
    """Return the newest run that has the given name and a checkpoint; None if there is none.

    A run without a checkpoint is skipped: it has saved nothing to resume from. All ranks of a launch therefore find the
    same run, even if one rank has already created the directory of a new run.
    """
    if not run_name:
        raise UserError(
            f"--resume {AUTO}: needs --run-name to find the run; add --run-name, with a different name for each run"
        )
    runs = [path.parent for path in Path(log_root, task).glob(f"*/{CONFIG_FILE}")]
    named = [run for run in runs if (match := _NAME.fullmatch(run.name)) and match[1] == run_name]
    return max(filter(list_checkpoints, named), key=by_start, default=None)


def check_same_run(config: TrainConfig, started: TrainConfig) -> None:
    """Raise if the run that the name identifies has a different seed, because it is then another, independent run."""
    if config.seed != started.seed:
        raise UserError(
            f"--resume {AUTO}: {started.resume} has this --run-name, but seed {started.seed} instead of {config.seed}; "
            "give each run its own --run-name"
        )


def is_complete(run_dir: Path, config: TrainConfig) -> bool:
    """Return whether a run has trained all its iterations; False if their number depends on the number of ranks."""
    return config.total_timesteps is None and max(list_checkpoints(run_dir), default=0) >= config.max_iterations
