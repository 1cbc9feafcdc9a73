"""Handle Ctrl-C, SIGTERM and SIGHUP: finish and save the current iteration of a run and then stop, or stop at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Protocol

from mjlab_dist.distributed.heartbeat import STOP_SIGNALS, Control
from mjlab_dist.machine.processes import PATIENCE_S, end_children, remove_own

# What a thread would leave behind if it did so while another thread ends this process; events of Python's auditing
LEAVES_BEHIND = {"subprocess.Popen", "tempfile.mkdtemp"}


class Stopper(Protocol):
    """Shows the user how a run stops."""

    @property
    def can_stop_gracefully(self) -> bool:
        """Whether there is anything to save yet."""
        ...

    def stopping(self, signum: int) -> None:
        """Called at the first signal, before the current iteration is finished and saved."""

    def stopped(self, signum: int) -> None:
        """Called after all child processes were killed, just before this process ends."""


@contextlib.contextmanager
def stopping_on_signal(control: Control, stopper: Stopper) -> Iterator[None]:
    """Stop a run when a stop signal arrives.

    After the first signal, the current iteration is finished and saved. A second Ctrl-C stops the run at once. If there
    is nothing to save yet, the first signal stops the run at once.

    A separate thread handles the signals, because Python runs signal handlers only after the main thread has returned
    to Python code. It can take seconds to return while ranks exchange data. A terminal sends Ctrl-C and SIGHUP to every
    process; child processes that are started inside the context block these signals.
    """
    at_once = threading.Event()
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd)

    def watch() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the parent may have blocked some
        while True:
            signum = os.read(read_fd, 1)[0]
            if control.stop_requested and signum != signal.SIGINT:
                continue  # schedulers repeat SIGTERM, and a shell repeats the SIGHUP of its terminal
            # First signal: stop gracefully
            if stopper.can_stop_gracefully and not control.stop_requested:
                stopper.stopping(signum)
                control.request_stop()
                continue
            # Second Ctrl-C, or nothing to save: stop at once
            at_once.set()
            _end(signum, stopper.stopped)

    # Only signals with a Python handler reach the wakeup descriptor; the handlers do nothing else
    for signum in handled_signals():
        signal.signal(signum, lambda *_: None)
    threading.Thread(target=watch, name="stop", daemon=True).start()
    # From here on, only the thread above receives these signals: not the main thread, nor the processes that it forks.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        if at_once.is_set():
            threading.Event().wait()  # the signal caused this error; the thread above ends the process


def handled_signals() -> set[signal.Signals]:
    """Return the signals that stop a command. SIGHUP is left out if it is ignored, as in a command under ``nohup``."""
    return {s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN}


@contextlib.contextmanager
def stopping_with_others(control: Control) -> Iterator[None]:
    """Stop all ranks gracefully when any of them receives SIGTERM.

    This context is for ranks that another launcher has started, such as torchrun.
    """
    signal.signal(signal.SIGTERM, lambda *_: control.request_stop())
    yield


def _end(signum: int, stopped: Callable[[int], None]) -> None:
    sys.addaudithook(_hold)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_is_starting, sys._current_frames().values())) and time.monotonic() < deadline:
        time.sleep(0.001)
    try:
        end_children()
        remove_own()
        stopped(signum)
        sys.stdout.flush()
    finally:
        os._exit(128 + signum)


def _hold(event: str, _: object) -> None:
    """Stop a thread that is about to start a process or to make a temporary directory."""
    if event in LEAVES_BEHIND:
        threading.Event().wait()


def _is_starting(frame: FrameType | None) -> bool:
    """Return whether a thread was already starting a process when :func:`_hold` was installed."""
    while frame is not None and frame.f_code is not _hold.__code__:
        if frame.f_code is subprocess.Popen.__init__.__code__:
            return True
        frame = frame.f_back
    return False
