"""Text of the files of a new task. Here: names, package files, and source code in the style of the formatter."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

# Maximum length of a line
WIDTH = 120

# Functions that a config may import
FUNCTIONS = ("event", "metric", "observation", "reward", "term", "termination")

# Modules of mjlab_dist.mdp that a config imports
MODULES = ("commands", "events", "observations", "rewards", "sensors", "terminations")

# Text of typings/mujoco/__init__.pyi of a separate package
STUB_SOURCE = """# MuJoCo's bindings are compiled and have no types. Type checkers look for stubs in the folder typings.
from typing import Any

def __getattr__(name: str) -> Any: ...
"""


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


def package_source(names: Names) -> str:
    """Return the text of the package's ``__init__.py``."""
    return f'''"""The task {names.task}."""

from mjlab_dist.config import lazy_modules

# Allows list-tasks to read the config without importing torch. The line is optional; without it, commands are slower.
__getattr__ = lazy_modules(__name__, "terms")
'''


def project_source(names: Names) -> str:
    """Return the text of the ``pyproject.toml`` of a separate package."""
    return f'''[project]
name = "{names.task}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["mjlab-dist"]

# train, play and list-tasks find the task here: its name, and the function that returns its config.
[project.entry-points."mjlab_dist.tasks"]
{entry_point(names)}

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["{names.module}"]
ignore-vcs = true # also packs meshes that a .gitignore excludes
'''


def entry_point(names: Names) -> str:
    """Return the entry point of a task, which is a line of a pyproject.toml."""
    return f'{names.task} = "{names.module}.config:{names.function}"'


def text(value: str) -> str:
    """Return a string literal."""
    return json.dumps(value, ensure_ascii=False)


def tuple_lines(start: str, items: tuple[str, ...], end: str, indent: int) -> list[str]:
    """Return the lines of a tuple of strings: one line if it is short enough, else one per item."""
    inside = ", ".join(map(text, items)) + ("," if len(items) == 1 else "")
    line = f"{start}({inside}){end}"
    if indent + len(line) <= WIDTH:
        return [line]
    return [f"{start}(", *(f"    {text(item)}," for item in items), f"){end}"]


def joined(lines: Iterable[str]) -> str:
    """Join lines."""
    return "\n".join(lines)


def indented(lines: Iterable[str], spaces: int) -> str:
    """Join lines and indent those that are not empty."""
    return "\n".join(" " * spaces + line if line else "" for line in lines)


def rounded(number: float) -> float:
    """Return a number rounded to two significant digits."""
    return float(f"{number:.2g}")


def rounded_up(length_m: float) -> float:
    """Return a length in m, rounded up to the next centimeter."""
    return round(length_m + 0.005, 2)
