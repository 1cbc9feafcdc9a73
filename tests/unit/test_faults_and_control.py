"""Faults as they are written, and the watchdog."""

from __future__ import annotations

import threading
import time

import pytest

from mjlab_dist import control
from mjlab_dist.control import Control, Watchdog
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


def watched(monkeypatch: pytest.MonkeyPatch, timeout_s: float) -> tuple[Control, list[int], threading.Event]:
    monkeypatch.setattr(control, "POLL_S", 0.01)
    rank, seen, hung = Control(), list[int](), threading.Event()
    Watchdog(rank, timeout_s, seen.append, lambda _: hung.set()).start()
    return rank, seen, hung


def test_a_rank_that_has_not_begun_does_not_hang(monkeypatch: pytest.MonkeyPatch):
    _, seen, hung = watched(monkeypatch, 0.05)
    assert not hung.wait(0.3)
    assert seen == []


def test_a_rank_that_beats_does_not_hang_and_one_that_stops_does(monkeypatch: pytest.MonkeyPatch):
    rank, seen, hung = watched(monkeypatch, 0.5)
    for iteration in range(10):
        rank.beat(iteration // 5)
        time.sleep(0.1)
    assert not hung.is_set(), "it beat all the time, though not with a new iteration"
    assert seen == [0, 1], "every iteration is told once"
    assert hung.wait(5)
