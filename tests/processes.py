"""Find processes by their command lines, and send them signals. Any of them may end in the meantime."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable

import psutil

AGENT_MODULE = "mjlab_dist.launch.torchrunx_agent"
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


def send_all(processes: Iterable[psutil.Process], signum: signal.Signals) -> None:
    """Send a signal to those of the processes that have not ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)
