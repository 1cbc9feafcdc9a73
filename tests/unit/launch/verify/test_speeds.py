"""Speeds, efficiencies and shares of the time, computed from invented times."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rank_evidence import evidence, times

from mjlab_dist.launch.verify.evidence import Evidence, IterationTimes
from mjlab_dist.launch.verify.speeds import NUM_WARM_UP, as_round, as_row


def rank(number: int, each: IterationTimes, **changed: Any) -> Evidence:
    """Return evidence of a rank, whose first iterations take ten times as long as the others."""
    slow = dataclasses.replace(each, wall_s=10 * each.wall_s, physics_s=10 * each.physics_s)
    return evidence(number, 16, iterations=[slow] * NUM_WARM_UP + [each] * 3, **changed)


def test_the_rank_that_arrives_last_communicates_and_the_others_also_wait() -> None:
    # Rank 0 joins the first collective operation later than rank 1, and rank 1 joins the second one later
    ranks = [rank(0, times(0.4, [0.01, 0.15])), rank(1, times(0.3, [0.11, 0.05]))]
    one = as_round(ranks, num_steps=32, reached=None)
    assert one.steps_per_s == 2 * 16 * 32
    assert one.computing_s == pytest.approx([0.8, 0.7])
    shares = one.shares
    assert shares.communication == pytest.approx(0.01 + 0.05)
    assert shares.waiting == pytest.approx((0.10 + 0.10) / 2)
    assert (shares.physics, shares.env, shares.policy, shares.update) == pytest.approx((0.35, 0.1, 0.1, 0.2))
    assert sum(dataclasses.astuple(shares)) == pytest.approx(1)


def test_memory_is_that_of_the_fullest_machine() -> None:
    hosts = [("a", 1000.0), ("a", 1000.0), ("b", 1500.0)]
    ranks = [rank(i, times(), memory_mb=memory, host=host) for i, (host, memory) in enumerate(hosts)]
    assert as_round(ranks, num_steps=1, reached=None).memory_share == pytest.approx(2 / 8)


def test_the_slowest_rank_decides_the_speed() -> None:
    slow = dataclasses.replace(times(), wall_s=2.0)
    assert as_round([rank(0, times()), rank(1, slow)], num_steps=1, reached=None).steps_per_s == 16


def test_ratios_are_those_of_each_round() -> None:
    # The machine is twice as fast in the second round, for both numbers of ranks
    base = as_round([rank(0, times())], num_steps=1, reached=None)
    speeds = {1: [100.0, 200.0], 4: [300.0, 640.0]}
    runs = {count: [dataclasses.replace(base, steps_per_s=one) for one in each] for count, each in speeds.items()}
    first, last = (as_row(count, rounds, runs[1]) for count, rounds in runs.items())
    assert (first.speed_up, first.efficiency) == (1, 1)
    assert (last.speed_up, last.efficiency) == pytest.approx((3.1, 0.775))
    assert last.steps_per_s == 470
    assert sum(dataclasses.astuple(last.shares)) == pytest.approx(1)
