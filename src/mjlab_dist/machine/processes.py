"""Child processes, and temporary files that must not outlive their launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

TEMPORARY = "mjlab-dist-launch-"
"""Prefix of the names of launches' temporary directories; the launcher's pid follows."""

YOUNG_S = 60.0
"""Age below which such a directory may not be locked yet."""

LAUNCH = "MJLAB_DIST_LAUNCH"
"""Variable that distinguishes the processes of one launch from other descendants of this process."""


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """Make a directory for the temporary files of all processes of a launch, and remove it afterwards.

    Directories of killed launches are removed first.
    """
    remove_leftovers()
    prefix = f"{TEMPORARY}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as path:
        directory = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path
        finally:
            os.close(directory)


def remove_leftovers() -> None:
    """Remove the temporary directories of launches that have ended: a launch holds a lock on its own."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # it is in use, belongs to another user, or was just removed
            if time.time() - path.stat().st_mtime < YOUNG_S:
                continue
            directory = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(directory)


def end_children(launch: str | None = None) -> None:
    """Kill processes that descend from this one, and wait until they are gone.

    Args:
        launch: Kill only those that inherited this value of :data:`LAUNCH`, because a notebook has children of its own;
            None for all.
    """
    import psutil  # noqa: PLC0415 (slow to import, and needed at the end only)

    children = psutil.Process().children(recursive=True)
    if launch is not None:
        children = [child for child in children if _environ(child).get(LAUNCH) == launch]
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(children, timeout=5)


def run_program(program: str, *args: str, timeout_s: float) -> str:
    """Run Python code in a process of its own and return what it prints.

    Only a process can be stopped while it waits for a name server that does not answer.

    Args:
        program: The code, which imports the standard library only.
        args: Its arguments.
        timeout_s: Seconds until it is killed.

    Raises:
        OSError: If it takes too long, or raises an exception; the message is that of the exception.
    """
    command = [sys.executable, "-I", "-S", "-c", program, *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"timed out after {timeout_s:g} s") from None
    if done.returncode != 0:
        raised = done.stderr.strip().rpartition("\n")[2]
        raise OSError(re.sub(r"^[\w.]+: (\[Errno -?\d+\] )?", "", raised))
    return done.stdout.strip()


def _environ(process: psutil.Process) -> dict[str, str]:
    import psutil  # noqa: PLC0415

    try:
        return process.environ()
    except psutil.Error:
        return {}  # it has just ended
