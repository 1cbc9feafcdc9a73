"""Child processes that must not outlive their launcher, and the signals that end a launch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

LAUNCH = "MJLAB_DIST_LAUNCH"
"""Variable that tells the processes of one launch from the others that descend from this one."""


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


@contextlib.contextmanager
def ending_on_signal(stopped: Callable[[int], None]) -> Iterator[None]:
    """For a command: SIGINT and SIGTERM end every child and then this process, even while the main thread is in C code.

    Python runs signal handlers in the main thread, once it is back in Python: in a collective that takes seconds. Children
    started within do not see Ctrl-C, which a terminal sends to all: they are killed instead.

    Args:
        stopped: Called with the signal's number once the children have ended; this process ends after it.
    """
    stopping = threading.Event()
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)

    def watch() -> None:
        signum = os.read(read_fd, 1)[0]
        stopping.set()
        _stop(signum, stopped)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    threading.Thread(target=watch, name="stop", daemon=True).start()
    # The thread above still takes SIGINT; the main thread, and what it forks from now on, does not.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if stopping.is_set():
            threading.Event().wait()  # what failed, failed because of the signal; the thread ends this process


def _stop(signum: int, stopped: Callable[[int], None]) -> None:
    try:
        end_children()
        stopped(signum)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)
