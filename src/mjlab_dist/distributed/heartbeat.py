"""Stop requests to a rank's training loop, and heartbeats from it. Imports the standard library only."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Interval of the watchdog's checks, in seconds
POLL_S = 0.5

# If two checks are further apart than this, in s, this process was stopped (for example by Ctrl-Z, or with its
# container) or got no CPU time. Nobody could use this time, so it does not count as time without progress.
PAUSE_S = 2.0

# Signals that stop a run. SIGHUP is sent when the terminal is closed; a command under nohup ignores it.
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class Beat(NamedTuple):
    """Heartbeat of the training loop."""

    # Number of iterations done
    iteration: int
    # Time of the heartbeat, from time.monotonic
    at_s: float


class Control:
    """Stop request and last heartbeat. Each rank has one object, and the launcher has another.

    Methods may be called from any thread and from signal handlers.
    """

    def __init__(self) -> None:
        """Start without a stop request or a heartbeat."""
        self._stop, self._kill = threading.Event(), threading.Event()
        self.last_beat: Beat | None = None

    @property
    def stop_requested(self) -> bool:
        """Whether training should write a checkpoint and stop after the current iteration."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Ask training to write a checkpoint and stop after the current iteration."""
        self._stop.set()

    @property
    def kill_requested(self) -> bool:
        """Whether the launcher should kill all ranks."""
        return self._kill.is_set()

    def request_kill(self) -> None:
        """Ask the launcher to kill all ranks."""
        self._kill.set()

    def wait_for_stop(self, timeout_s: float) -> bool:
        """Wait until a stop is requested; return False after the timeout."""
        return self._stop.wait(timeout_s)

    def beat(self, iteration: int) -> None:
        """Record a heartbeat of the training loop."""
        self.last_beat = Beat(iteration, time.monotonic())


class Watchdog(threading.Thread):
    """Thread that reports the training loop's progress, and detects when the loop hangs."""

    def __init__(
        self, control: Control, timeout_s: float, advanced: Callable[[int], None], hung: Callable[[float], None]
    ) -> None:
        """Create the thread without starting it."""
        super().__init__(name="watchdog", daemon=True)
        self._control, self._timeout_s = control, timeout_s
        self._advanced, self._hung = advanced, hung
        self._reported = -1
        self._checked_at_s = self._resumed_at_s = -math.inf

    def run(self) -> None:
        """Check repeatedly until the loop hangs; the thread ends with the process."""
        while not self.check(time.monotonic()):
            time.sleep(POLL_S)

    def check(self, now_s: float) -> bool:
        """Check once; return whether the loop hangs."""
        # After a pause, the time without a heartbeat starts again
        if now_s - self._checked_at_s > PAUSE_S:
            self._resumed_at_s = now_s
        self._checked_at_s = now_s
        beat = self._control.last_beat
        if beat is None:
            return False
        # Progress
        if beat.iteration != self._reported:
            self._reported = beat.iteration
            self._advanced(beat.iteration)
        # Hang
        silent_s = now_s - max(beat.at_s, self._resumed_at_s)
        if silent_s <= self._timeout_s:
            return False
        self._hung(silent_s)
        return True


def slices(timeout_s: float) -> Iterator[float]:
    """Yield the lengths of successive waits, in s, that together last as long as a timeout.

    While this process is stopped, the clock of a wait continues. With short waits, at most one of them is lost.
    """
    while timeout_s > 0:
        yield min(timeout_s, PAUSE_S)
        timeout_s -= PAUSE_S
