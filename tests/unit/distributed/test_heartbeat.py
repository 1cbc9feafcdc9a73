"""The watchdog of a rank, which ends a rank that hangs."""

from __future__ import annotations

import math
import threading

import pytest

from mjlab_dist.distributed import heartbeat
from mjlab_dist.distributed.heartbeat import Beat, Control, Watchdog


def test_a_rank_that_has_not_started_does_not_count_as_hung():
    called: list[float] = []
    watchdog = Watchdog(Control(), 5.0, called.append, called.append)
    assert not watchdog.check(1e9)
    assert not called


def test_a_rank_hangs_only_if_its_beats_stop():
    rank, seen, hung = Control(), list[int](), list[float]()
    watchdog = Watchdog(rank, 5.0, seen.append, hung.append)

    def checked(since_s: float, until_s: float) -> bool:
        return any(watchdog.check(since_s + heartbeat.POLL_S * i) for i in range(1 + round((until_s - since_s) * 2)))

    watchdog.check(99.5)
    for iteration, at_s in ((0, 100.0), (0, 104.0), (1, 108.0)):
        rank.last_beat = Beat(iteration, at_s)
        assert not checked(at_s, at_s + 4.0)
    assert seen == [0, 1], "every iteration is reported once"
    assert not checked(112.5, 113.0)
    assert watchdog.check(113.5)
    assert hung == [5.5]


@pytest.mark.parametrize("paused_s", [5.5, 1e6])
def test_time_while_the_process_was_stopped_does_not_count(paused_s: float):
    rank, hung = Control(), list[float]()
    watchdog = Watchdog(rank, 5.0, lambda _: None, hung.append)
    watchdog.check(100.0)
    rank.last_beat = Beat(3, 100.0)
    assert not watchdog.check(101.0)
    at_s = 101.0 + paused_s
    assert not any(watchdog.check(at_s + i) for i in range(6))
    assert watchdog.check(at_s + 5.5)
    assert hung == [5.5]


def test_a_timeout_is_divided_into_short_waits():
    assert list(heartbeat.slices(5.0)) == [2.0, 2.0, 1.0]
    assert not list(heartbeat.slices(0.0))
    assert [wait for _, wait in zip(range(3), heartbeat.slices(math.inf), strict=False)] == [2.0] * 3


def test_the_watchdog_runs_in_its_own_thread(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeat, "POLL_S", 0.01)
    rank, advanced, hung = Control(), threading.Event(), threading.Event()
    Watchdog(rank, 0.0, lambda _: advanced.set(), lambda _: hung.set()).start()
    rank.beat(3)
    assert advanced.wait(60)
    assert hung.wait(60)
