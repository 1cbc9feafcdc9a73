"""Find processes by their command lines. A process that has ended has an empty command line."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

AGENT_MODULE = "mjlab_dist.launch.agent"
"""Module that torchrunx's agents run."""


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process, or an empty list if the process has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def with_argument(processes: Iterable[psutil.Process], argument: str) -> list[psutil.Process]:
    """Return the processes that have an argument in their command line, the oldest first."""
    found = [process for process in processes if argument in command_line(process)]
    return sorted(found, key=lambda process: process.create_time())
