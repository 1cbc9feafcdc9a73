"""Ctrl-C and SIGTERM to a command: a run stops in order, or at once."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from mjlab_dist.control import Control
from mjlab_dist.machine.processes import TEMPORARY, end_children


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


@contextlib.contextmanager
def stopping_with_others(control: Control) -> Iterator[None]:
    """Where another launcher started the ranks, which ends them too: its SIGTERM to any of them stops all in order.

    Args:
        control: Of this rank.
    """
    signal.signal(signal.SIGTERM, lambda *_: control.request_stop())
    yield


def _end(signum: int, stopped: Callable[[int], None]) -> None:
    try:
        end_children()
        for path in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}{os.getpid()}-*"):
            shutil.rmtree(path, ignore_errors=True)
        stopped(signum)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)
