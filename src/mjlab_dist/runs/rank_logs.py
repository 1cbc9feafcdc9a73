"""Choose the directory for the log files of ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mjlab_dist.config import TrainConfig


def log_dir(config: TrainConfig, run_dir: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the ranks' log files, or None for no files."""
    chosen = chosen_log_dir(config, environ)
    if chosen is None:
        return run_dir / "torchrunx"
    return Path(chosen) if chosen else None


def chosen_log_dir(config: TrainConfig, environ: Mapping[str, str]) -> str | None:
    """Return the value of TORCHRUNX_LOG_DIR or, if this variable is not set, of --torchrunx-log-dir.

    An empty value means that the ranks write no log files. None means that neither the variable nor the flag is set.
    """
    return environ.get("TORCHRUNX_LOG_DIR", config.torchrunx_log_dir)
