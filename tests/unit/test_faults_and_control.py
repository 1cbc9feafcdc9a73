"""Faults as they are written, and the watchdog."""

from __future__ import annotations

import threading

import pytest

from mjlab_dist import control
from mjlab_dist.control import Beat, Control, Watchdog
from mjlab_dist.errors import UserError
from mjlab_dist.faults import ATTEMPT, VARIABLE, Fault, read_fault


def test_no_variable_is_no_fault():
    assert read_fault({}) is None
    assert read_fault({VARIABLE: ""}) is None


def test_each_attempt_has_its_own_fault():
    environ = {VARIABLE: "1:3:raise, 0:12:sigstop"}
    assert read_fault(environ) == Fault(rank=1, iteration=3, kind="raise")
    assert read_fault({**environ, ATTEMPT: "1"}) == Fault(rank=0, iteration=12, kind="sigstop")
    assert read_fault({**environ, ATTEMPT: "2"}) is None


@pytest.mark.parametrize("text", ["1", "1:2", "-1:2:raise", "1:x:raise", "1:2:explode", "1:2:raise,", "1:2:raise:now"])
def test_what_cannot_be_read_is_refused_whatever_the_attempt(text: str):
    with pytest.raises(UserError, match=f"^{VARIABLE}={text}: write <rank>:<iteration>:<kind>"):
        read_fault({VARIABLE: text, ATTEMPT: "7"})


def test_a_rank_that_has_not_begun_does_not_hang():
    called: list[float] = []
    watchdog = Watchdog(Control(), 5.0, called.append, called.append)
    assert not watchdog.check(1e9)
    assert not called


def test_a_rank_that_beats_does_not_hang_and_one_that_stops_does():
    rank, seen, hung = Control(), list[int](), list[float]()
    watchdog = Watchdog(rank, 5.0, seen.append, hung.append)
    for iteration, at_s in ((0, 100.0), (0, 104.0), (1, 108.0)):
        rank.last_beat = Beat(iteration, at_s)
        assert not watchdog.check(at_s + 5.0)
    assert seen == [0, 1], "every iteration is reported once"
    assert watchdog.check(113.5)
    assert hung == [5.5]


def test_the_watchdog_looks_from_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(control, "POLL_S", 0.01)
    rank, advanced, hung = Control(), threading.Event(), threading.Event()
    Watchdog(rank, 0.0, lambda _: advanced.set(), lambda _: hung.set()).start()
    rank.beat(3)
    assert advanced.wait(60)
    assert hung.wait(60)
