"""Directories of the log files of ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mjlab_dist.config import registry
from mjlab_dist.runs.run_dir import log_dir

RUN_DIR = Path("logs/run")


@pytest.mark.parametrize(
    ("variable", "flag", "directory"),
    [
        (None, None, RUN_DIR / "torchrunx"),
        (None, "by-flag", Path("by-flag")),
        ("by-variable", None, Path("by-variable")),
        ("by-variable", "by-flag", Path("by-variable")),
        (None, "", None),
        ("", None, None),
        ("", "by-flag", None),
        ("by-variable", "", Path("by-variable")),
    ],
)
def test_the_log_directory_follows_the_variable_then_the_flag_then_the_default(
    variable: str | None, flag: str | None, directory: Path | None
):
    config = dataclasses.replace(registry.task_config("cartpole-balance"), torchrunx_log_dir=flag)
    environ = {} if variable is None else {"TORCHRUNX_LOG_DIR": variable}
    assert log_dir(config, RUN_DIR, environ) == directory
