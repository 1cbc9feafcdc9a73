"""Metrics, checkpoints and events with many ranks: 64 real processes without envs, and 256 simulated ranks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("bench_ranks")


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_64_ranks_start_report_and_gather(bench: Any) -> None:
    _, found, events = bench.real(64)
    assert [one.rank for one in found] == list(range(64))
    assert {one.num_episodes for one in found} == {64}
    assert [one.num_states for one in found] == [64] + [0] * 63
    rows = [event["row"]["iteration"] for event in events if event["kind"] == "iteration"]
    assert rows == list(range(1, 21))


@pytest.mark.slow
def test_bookkeeping_grows_at_most_linearly_with_simulated_ranks(
    bench: Any, assert_within: Callable[[float, float], None]
) -> None:
    events_s, few = bench.simulated(16)
    events_s, many = bench.simulated(256)
    assert (few.num_states, many.num_states) == (16, 256)
    # Times grow at most linearly: 16 times as many ranks need at most 16 times as long
    assert_within(many.metrics_s, 16 * few.metrics_s)
    assert_within(many.checkpoint_s, 16 * few.checkpoint_s)
    assert_within(events_s, 0.1)
