"""Names of a new task and its files."""

from __future__ import annotations

from dataclasses import dataclass

FUNCTIONS = ("event", "metric", "observation", "reward", "term", "termination")
"""Functions that a config may import."""

MODULES = ("commands", "events", "observations", "rewards", "terminations")
"""Modules of ``mjlab_dist.mdp`` that a config imports."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a task and its files."""

    task: str
    """Name of the task on the command line."""
    module: str
    """Python package of the task."""
    function: str
    """Function that returns the config."""
    file: str
    """Path of the MJCF relative to the package."""


def function_name(module: str) -> str:
    """Return the name of the function that returns a task's config.

    It is the module's name. If the config imports something with this name, the function's name also ends in ``_task``.
    """
    return f"{module}_task" if module in (*FUNCTIONS, *MODULES, "terms") else module
