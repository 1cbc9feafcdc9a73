"""Child processes that must not outlive their launcher, and the signals that end a launch."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


def end_children() -> None:
    """Kill every process that descends from this one, and wait until they are gone."""
    import psutil  # noqa: PLC0415 (slow to import, and needed at the end only)

    children = psutil.Process().children(recursive=True)
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(children, timeout=5)


def on_stop_signal(stop: Callable[[int], None]) -> threading.Event:
    """Call a function, in a thread of its own, when SIGINT or SIGTERM arrives, even while the main thread is in C code.

    Python runs signal handlers in the main thread, once it is back in Python: in a collective that takes seconds. Children
    started from here on do not see Ctrl-C, which a terminal sends to all: they are ended by ``stop`` instead.

    Args:
        stop: Called once with the signal's number; has to end the process.

    Returns:
        Set once a signal has arrived: what fails from then on fails because of it.
    """
    stopping = threading.Event()
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)

    def watch() -> None:
        signum = os.read(read_fd, 1)[0]
        stopping.set()
        stop(signum)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    threading.Thread(target=watch, name="stop", daemon=True).start()
    # The thread above still takes SIGINT; the main thread, and what it forks from now on, does not.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    return stopping
