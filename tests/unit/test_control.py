"""The watchdog of a rank, which ends a rank that hangs."""

from __future__ import annotations

import threading

import pytest

from mjlab_dist import control
from mjlab_dist.control import Beat, Control, Watchdog


def test_a_rank_that_has_not_started_does_not_count_as_hung():
    called: list[float] = []
    watchdog = Watchdog(Control(), 5.0, called.append, called.append)
    assert not watchdog.check(1e9)
    assert not called


def test_a_rank_hangs_only_if_its_beats_stop():
    rank, seen, hung = Control(), list[int](), list[float]()
    watchdog = Watchdog(rank, 5.0, seen.append, hung.append)
    for iteration, at_s in ((0, 100.0), (0, 104.0), (1, 108.0)):
        rank.last_beat = Beat(iteration, at_s)
        assert not watchdog.check(at_s + 5.0)
    assert seen == [0, 1], "every iteration is reported once"
    assert watchdog.check(113.5)
    assert hung == [5.5]


def test_the_watchdog_runs_in_its_own_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "POLL_S", 0.01)
    rank, advanced, hung = Control(), threading.Event(), threading.Event()
    Watchdog(rank, 0.0, lambda _: advanced.set(), lambda _: hung.set()).start()
    rank.beat(3)
    assert advanced.wait(60)
    assert hung.wait(60)
