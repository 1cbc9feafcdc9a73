"""Run test commands in a private mount namespace. warm_host.py forks the commands there."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command, Done
from warm_start import WarmStarts

FORK = (sys.executable, "-I", "-S", str(Path(__file__).with_name("host_command.py")))
"""First words of a command line that runs a command in a fork of the server in warm_host.py."""


class Mounts:
    """Runs commands in a mount namespace with additional file systems.

    Args:
        command: Runs commands of the test.
        first: ID of a process in the mount namespace.

    Attributes:
        root: Path to the commands' root directory, as seen from this process.
        cwd: Path to the commands' working directory, as seen from this process.
    """

    def __init__(self, command: Command, first: int) -> None:
        self.root = Path(f"/proc/{first}/root")
        self.cwd = Path(f"/proc/{first}/cwd")
        self._command = command
        self._first = first

    def __call__(self, name: str, *args: str, env: dict[str, str] | None = None) -> Done:
        """Run an installed command by its name, another program by its path, or a script of :meth:`Command.script`."""
        enter = ("nsenter", "--target", str(self._first), "--user", "--mount", "--preserve-credentials", "--wd")
        program = self._command.program(name)
        return self._command("/usr/bin/env", *enter, *FORK, str(self._first), program, *args, env=env)


@contextlib.contextmanager
def mounted(command: Command, warm: WarmStarts | None, mounts: str) -> Iterator[Mounts]:
    """Mount file systems with shell commands until the context ends. Skip the test if mounting is not permitted.

    With `warm`, most commands are forked. Without `warm`, all commands are started by exec.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs unshare, of util-linux")
    first = command.start(
        *(unshare, "--user", "--map-root-user", "--mount"),
        *("sh", "-c", f"({mounts}) && echo mounted && exec cat"),
        stdin=subprocess.PIPE,
    )
    assert first.stdout
    if first.stdout.readline() != "mounted\n":
        done = command.finish(first)
        pytest.skip(f"needs a mount namespace of its own, which is refused here: {done.err.strip()}")
    with (command.cwd / "forks.log").open("wb") as log:
        server = warm.start_on_host(first.pid, log) if warm else None
    try:
        yield Mounts(command, first.pid)
    finally:
        if server:
            server.kill()
            server.wait()
        command.finish(first)


@contextlib.contextmanager
def forked_here(warm: WarmStarts | None, log: Path) -> Iterator[list[str]]:
    """Yield the first words of a command line. An installed command after these words is forked from a warm process.

    Programs such as the fake SLURM start commands by exec, which is slower.
    """
    if warm is None:
        yield ["env"]
        return
    with log.open("wb") as file:
        server = warm.start_on_host(os.getpid(), file)
    try:
        yield [*FORK, str(os.getpid())]
    finally:
        server.kill()
        server.wait()
