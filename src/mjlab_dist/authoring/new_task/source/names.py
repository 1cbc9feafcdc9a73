"""Names of a new task and its files."""

from __future__ import annotations

from dataclasses import dataclass

# Functions that a config may import
FUNCTIONS = ("event", "metric", "observation", "reward", "term", "termination")

# Modules of mjlab_dist.mdp that a config imports
MODULES = ("commands", "events", "observations", "rewards", "terminations")


@dataclass(frozen=True, kw_only=True)
class Names:
    """Names of a task and its files."""

    # Name of the task on the command line
    task: str
    # Python package of the task
    module: str
    # Function that returns the config
    function: str
    # Path of the MJCF relative to the package
    file: str


def function_name(module: str) -> str:
    """Return the name of the function that returns a task's config.

    It is the module's name. If the config imports something with this name, the function's name also ends in ``_task``.
    """
    return f"{module}_task" if module in (*FUNCTIONS, *MODULES, "terms") else module
