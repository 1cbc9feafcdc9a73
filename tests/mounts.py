"""Run test commands in a private mount namespace."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Command, Done


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
        return self._command("/usr/bin/env", *enter, self._command.program(name), *args, env=env)


@contextlib.contextmanager
def mounted(command: Command, mounts: str) -> Iterator[Mounts]:
    """Mount file systems with shell commands until the context ends. Skip the test if mounting is not permitted."""
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
    try:
        yield Mounts(command, first.pid)
    finally:
        command.finish(first)
