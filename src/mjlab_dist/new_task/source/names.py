"""What a new task and its files are called."""

from __future__ import annotations

from dataclasses import dataclass

FUNCTIONS = ("event", "observation", "reward", "term")
"""Functions that a config imports."""

MODULES = ("events", "observations", "rewards", "terminations")
"""Modules of ``mjlab_dist.mdp`` that a config imports."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a task and its files."""

    task: str
    """Name of the task on the command line."""
    module: str
    """Its Python package."""
    function: str
    """Function that makes its config."""
    file: str
    """The MJCF, relative to the package."""


def function_name(module: str) -> str:
    """Return the name of the function that makes a task's config.

    It is the module's name, unless the config imports something of that name.

    Args:
        module: The module's last name.
    """
    return f"{module}_task" if module in (*FUNCTIONS, *MODULES, "terms") else module
