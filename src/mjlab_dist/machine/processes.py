"""Child processes that must not outlive their launcher, and the signals that end a launch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mjlab_dist.control import Control

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


class Stopper(Protocol):
    """What a person sees of a stop."""

    @property
    def can_stop_in_order(self) -> bool:
        """Whether there is anything to save yet."""
        ...

    def stopping(self, signum: int) -> None:
        """A first signal has come: the present iteration is finished and saved."""

    def stopped(self, signum: int) -> None:
        """Every process has been ended at once; this one ends when this returns."""


@contextlib.contextmanager
def stopping_on_signal(control: Control, stopper: Stopper) -> Iterator[None]:
    """For a command: SIGINT and SIGTERM stop the run in order, or at once where nothing is trained yet; so does a second Ctrl-C.

    Python runs signal handlers in the main thread, once it is back in Python: in a collective that takes seconds. So a thread of
    its own takes them. Children started within do not see Ctrl-C, which a terminal sends to all.

    Args:
        control: Of the run.
        stopper: Is told.
    """
    at_once = threading.Event()
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)

    def watch() -> None:
        while True:
            signum = os.read(read_fd, 1)[0]
            if control.stop_requested and signum != signal.SIGINT:
                continue  # schedulers repeat themselves
            if stopper.can_stop_in_order and not control.stop_requested:
                stopper.stopping(signum)
                control.request_stop()
                continue
            at_once.set()
            _end(signum, stopper.stopped)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    threading.Thread(target=watch, name="stop", daemon=True).start()
    # The thread above still takes SIGINT; the main thread, and what it forks from now on, does not.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if at_once.is_set():
            threading.Event().wait()  # what failed, failed because of the signal; the thread ends this process


def _end(signum: int, stopped: Callable[[int], None]) -> None:
    try:
        end_children()
        for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}{os.getpid()}-*"):
            shutil.rmtree(path, ignore_errors=True)
        stopped(signum)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)
