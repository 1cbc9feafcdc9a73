"""Child processes and temporary files that must not outlive their launcher."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

TEMPORARY = "mjlab-dist-launch-"
"""How the names of launches' temporary directories begin; the launcher's pid follows."""

YOUNG_S = 60.0
"""Age below which such a directory may not be locked yet."""

LAUNCH = "MJLAB_DIST_LAUNCH"
"""Variable that tells the processes of one launch from the others that descend from this one."""


@contextlib.contextmanager
def temporary_directory() -> Iterator[str]:
    """A directory for the temporary files of all processes of a launch, removed with all that is in it.

    What killed launches left is removed first.
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
    """Remove the temporary directories of launches that are gone: a launch holds a lock on its own."""
    for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):  # it is in use, somebody else's, or has just been removed
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
        launch: Only those that inherited this value of :data:`LAUNCH`: a notebook has children of its own. None for all.
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


def _environ(process: psutil.Process) -> dict[str, str]:
    import psutil  # noqa: PLC0415

    try:
        return process.environ()
    except psutil.Error:
        return {}  # it has just ended
