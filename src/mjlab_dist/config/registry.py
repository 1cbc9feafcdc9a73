"""Tasks, found by entry point. Importing this module imports no task, and listing tasks imports only their configs.

A package offers a task by an entry point in the group ``mjlab_dist.tasks``. The name of the entry point is the task's
name. The entry point refers to a function that returns the task's :class:`~mjlab_dist.config.TrainConfig`. It has no
parameters, or an optional one, ``algorithm``, if the task has settings for several algorithms. ``list-tasks`` prints
the first line of that function's docstring. The module of the function must import neither torch nor warp.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from mjlab_dist.config import ALGORITHMS, Algorithm, TrainConfig
from mjlab_dist.errors import UserError, describe, did_you_mean

GROUP = "mjlab_dist.tasks"


def task_names() -> list[str]:
    """Return the names of all installed tasks, sorted. They are read from package metadata; no task is imported."""
    return sorted(entry_points(group=GROUP).names)


def task_config(name: str, algorithm: Algorithm | None = None) -> TrainConfig:
    """Return the default config of a task.

    Args:
        name: The task's name.
        algorithm: Name of an algorithm; None for the task's own. If the task's function has a parameter
            ``algorithm``, it is passed on; otherwise, another algorithm than the task's own has its default config.

    Raises:
        UserError: If no such task is installed, or its config cannot be imported or built.
    """
    point = _find(name, entry_points(group=GROUP))
    make = _load(point)
    try:
        takes_it = algorithm is not None and "algorithm" in inspect.signature(make).parameters
        config = dataclasses.replace(make(algorithm=algorithm) if takes_it else make(), task=name)
    except Exception as error:
        raise UserError(f"task {name}: its config cannot be created: {describe(error, point.value)}") from error
    if algorithm in (None, config.agent.algorithm):
        return config
    return dataclasses.replace(config, agent=ALGORITHMS[algorithm]())


def task_summaries(prefix: str = "") -> dict[str, str]:
    """Return the names of tasks, each with its summary, or with the reason why its package cannot be imported.

    Args:
        prefix: Start of the names to return; all by default. Only these tasks are imported.
    """
    points = entry_points(group=GROUP)
    return {name: _summary(name, points) for name in sorted(points.names) if name.startswith(prefix)}


def _summary(name: str, points: EntryPoints) -> str:
    try:
        doc = inspect.getdoc(_load(_find(name, points))) or ""
    except UserError as error:
        return f"(broken: {error})"
    return doc.partition("\n")[0]


def _find(name: str, points: EntryPoints) -> EntryPoint:
    found = list(points.select(name=name))
    if not found:
        near = did_you_mean(name, points.names, "list-tasks prints the tasks that are installed", max_names=3)
        raise UserError(f"unknown task {name}: {near}")
    if len({point.value for point in found}) > 1:
        owners = ", ".join(sorted(point.value for point in found))
        raise UserError(f"task {name}: offered by several packages ({owners}); uninstall all but one")
    return found[0]


def _load(point: EntryPoint) -> Callable[..., TrainConfig]:
    try:
        return point.load()
    except Exception as error:
        # A third-party package may raise anything when it is imported; the other tasks must stay usable.
        raise UserError(
            f"task {point.name}: {point.value} cannot be imported: {describe(error, point.value)}"
        ) from error
