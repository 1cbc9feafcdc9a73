"""Turn the help of all commands into a page of the documentation site, which lists all flags."""

from __future__ import annotations

import functools
import os
import re
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

WIDTH = 120
"""Width of the help, in characters."""


@functools.cache
def commands_page() -> str:
    """Return the page as Markdown."""
    commands: dict[str, tuple[str, ...]] = {f"mjlab-dist {name}": (name, "--help") for name in SUMMARIES}
    commands[f"All flags of train, for {EXAMPLE_TASK}"] = ("train", EXAMPLE_TASK, "--help-all")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(_help, commands.values()))
    sections = [f"## {title}\n\n{as_markdown(text)}" for title, text in zip(commands, texts, strict=True)]
    return "\n".join([HEAD, *sections])


def _help(command: tuple[str, ...]) -> str:
    """Return the help that a command prints."""
    environ = os.environ | {"COLUMNS": str(WIDTH)}
    argv = [sys.executable, "-c", PROGRAM, *command]
    return subprocess.run(argv, env=environ, check=True, capture_output=True, text=True).stdout


def as_markdown(text: str) -> str:
    """Turn the help of a command into Markdown: groups of flags become headings and lists."""
    parts: list[str] = []
    for block in text.strip().split("\n\n"):
        title, _, rest = block.partition("\n")
        if block.startswith("usage: "):
            parts.append(f"```\n{block.removeprefix('usage: ').replace(chr(10) + ' ' * 7, chr(10))}\n```")
        elif block.startswith("  --"):
            parts.append(_listed(block))
        elif title.endswith(":") and rest.startswith("  --"):
            parts.append(f"### {title[:-1]}\n\n{_listed(rest)}")
        elif rest.startswith("  "):
            parts.append(f"{_plain(title)}\n```\n{re.sub('^  ', '', rest, flags=re.MULTILINE)}\n```")
        else:
            parts.append(_plain(" ".join(block.split())))
    return "\n\n".join(parts) + "\n"


def _listed(table: str) -> str:
    """Turn a table of flags into a list."""
    rows = re.split(r"^  (?=--)", table, flags=re.MULTILINE)[1:]
    flags = (re.split(r"\s\s+", row.strip(), maxsplit=1) for row in rows)
    return "\n".join(f"- `{usage}`: {_plain(' '.join(' '.join(text).split()))}" for usage, *text in flags)


def _plain(text: str) -> str:
    """Escape characters that Markdown would read as markup."""
    return re.sub(r"[*_`\\\[\]]", r"\\\g<0>", text).replace("<", "&lt;")
