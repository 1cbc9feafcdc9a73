"""Turn the help of all commands into a page of the documentation site, which lists all flags."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from mjlab_dist.cli.main import SUMMARIES

EXAMPLE_TASK = "cartpole-balance"
"""Task whose flags the page shows. A task is needed, because flags that start with --env depend on the task."""

HEAD = """# Flags of all commands

After reading this page, you can use every flag of every command. The page is generated from the help
of the commands. [command-line.md](command-line.md) explains how to write values.
"""

PROGRAM = "from mjlab_dist.cli.main import umbrella; umbrella()"
"""Python program that runs ``mjlab-dist``, even if its script is not on PATH."""

WIDTH = 100
"""Width of the help, in characters."""


@functools.cache
def commands_page() -> str:
    """Return the page as Markdown."""
    commands: dict[str, tuple[str, ...]] = {f"mjlab-dist {name}": (name, "--help") for name in SUMMARIES}
    commands[f"All flags of train, for {EXAMPLE_TASK}"] = ("train", EXAMPLE_TASK, "--help-all")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(_help, commands.values()))
    sections = [f"## {title}\n\n```text\n{text.strip()}\n```\n" for title, text in zip(commands, texts, strict=True)]
    return "\n".join([HEAD, *sections])


def _help(command: tuple[str, ...]) -> str:
    """Return the help that a command prints."""
    environ = os.environ | {"COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"}
    argv = [sys.executable, "-c", PROGRAM, *command]
    return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout
