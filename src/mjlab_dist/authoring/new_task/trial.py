"""Test a new task: import its config from the written files, build its envs, and step them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.authoring.new_task.source import Names
from mjlab_dist.config import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.places import describe

if TYPE_CHECKING:
    from mjlab_dist.authoring.check.checks import Check

# Number of envs that are stepped
NUM_ENVS = 8


def try_task(names: Names, parent: Path) -> tuple[TrainConfig | None, list[Check]]:
    """Import the config of a task, build its envs on the CPU, and step them.

    Return the config, or None if it cannot be imported, and the failed checks.
    """
    from mjlab_dist.authoring.check.checks import failed  # imports torch
    from mjlab_dist.authoring.check.run_checks import try_out

    with importable(names.module, parent):
        try:
            config: TrainConfig = getattr(importlib.import_module(f"{names.module}.config"), names.function)()
        except Exception as error:  # noqa: BLE001 (the config is code, which may raise anything)
            return None, [failed("config", describe(error, names.module))]
        try:
            checks = try_out(dataclasses.replace(config, num_envs=NUM_ENVS, total_num_envs=None))
            return config, [check for check in checks if not check.passed]
        except UserError as error:
            return config, [failed("config", str(error))]


@contextlib.contextmanager
def importable(module: str, parent: Path) -> Iterator[None]:
    """Allow Python to import a package that is not installed, without writing bytecode to its folder."""
    outer, _, _ = module.rpartition(".")
    path = importlib.import_module(outer).__path__ if outer else sys.path
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    path.append(str(parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        path.remove(str(parent))
        sys.dont_write_bytecode = writes
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{module}.")]:
            del sys.modules[name]
