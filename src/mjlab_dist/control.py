"""What passes between a launch and a rank's training loop: a request to stop, and signs of life. Standard library only."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

POLL_S = 0.5
"""Seconds between two looks of the watchdog."""


class Beat(NamedTuple):
    """A sign of life of the training loop."""

    iteration: int
    """Iterations done."""
    at_s: float
    """When, by ``time.monotonic``."""


class Control:
    """One per rank, and one per launch; its methods may be called from any thread and from signal handlers.

    Attributes:
        last_beat: The newest sign of life; None until the rank has joined the others.
    """

    def __init__(self) -> None:
        """Nothing is asked, nothing has happened."""
        self._stop = threading.Event()
        self.last_beat: Beat | None = None

    @property
    def stop_requested(self) -> bool:
        """Whether training is to stop, in order, after the present iteration."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Ask for that."""
        self._stop.set()

    def beat(self, iteration: int) -> None:
        """Say that the loop goes on.

        Args:
            iteration: Iterations done.
        """
        self.last_beat = Beat(iteration, time.monotonic())


class Watchdog(threading.Thread):
    """Looks from a thread whether the training loop still goes on, and tells how far it is."""

    def __init__(
        self, control: Control, timeout_s: float, advanced: Callable[[int], None], hung: Callable[[float], None]
    ) -> None:
        """Look at nothing yet.

        Args:
            control: Of this rank.
            timeout_s: Seconds without a beat after which the rank hangs.
            advanced: Called with the iterations done, whenever there are more of them.
            hung: Called with the seconds since the last beat, once.
        """
        super().__init__(name="watchdog", daemon=True)
        self._control, self._timeout_s = control, timeout_s
        self._advanced, self._hung = advanced, hung
        self._reported = -1

    def run(self) -> None:
        """Look, until the process ends or the loop hangs."""
        while not self.check(time.monotonic()):
            time.sleep(POLL_S)

    def check(self, now_s: float) -> bool:
        """Look once; return whether the loop hangs.

        Args:
            now_s: The time, by ``time.monotonic``.
        """
        beat = self._control.last_beat
        if beat is None:
            return False
        if beat.iteration != self._reported:
            self._reported = beat.iteration
            self._advanced(beat.iteration)
        silent_s = now_s - beat.at_s
        if silent_s <= self._timeout_s:
            return False
        self._hung(silent_s)
        return True
