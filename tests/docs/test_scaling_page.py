"""docs/scaling.md agrees with its script, and the model in this script agrees with formulas and published figures."""

from __future__ import annotations

import importlib
import itertools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("scale_model")


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "scale_model.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_expected_maximum_agrees_with_order_statistics(model: Any) -> None:
    assert model.expected_maximum(1) == 0
    assert model.expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    assert model.expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-6)
    draws = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(0)).amax(dim=1)
    assert model.expected_maximum(64) == pytest.approx(draws.mean().item(), abs=4 * draws.std().item() / 20_000**0.5)


def test_the_model_counts_the_parameters_of_the_networks(model: Any) -> None:
    widths = (model.G1_OBSERVATIONS, *model.G1_HIDDEN)
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    heads = [torch.nn.Linear(widths[-1], outputs) for outputs in (model.G1_ACTIONS, 1)]
    shared = sum(p.numel() for layer in layers for p in layer.parameters())
    own = sum(p.numel() for head in heads for p in head.parameters())
    assert model.g1().num_parameters == 2 * shared + own + model.G1_ACTIONS


def test_a_tree_of_two_ranks_sends_twice_the_bytes_of_a_ring(model: Any) -> None:
    network = model.Network("", 1e-3, 1e6)
    assert model.ring_s(1e6, 2, network) == pytest.approx(2e-3 + 1.0)
    assert model.tree_s(1e6, 2, network) == pytest.approx(2e-3 + 2.0)
    # With many ranks, a ring has the latency of many messages; a tree has the latency of few messages
    assert model.ring_s(0, 1024, network) == pytest.approx(2046e-3)
    assert model.tree_s(0, 1024, network) == pytest.approx(20e-3)


def test_the_model_has_the_published_speeds_of_the_g1(model: Any) -> None:
    spread = model.fitted_spread()
    assert 0 < spread < 0.05
    for published in model.PUBLISHED[:2]:
        for ranks, speed in published.steps_per_s.items():
            assert model.predicted_speed(published, ranks, spread) == pytest.approx(speed, rel=0.035)
    assert model.predicted_speed(model.G1, 16, spread) == pytest.approx(model.G1.steps_per_s[16], rel=1e-3)


def test_independent_ranks_reach_the_ideal_speed(model: Any) -> None:
    ideal = model.Network("", 0.0, math.inf)
    one = model.predict(model.g1(), 1024, ideal, 0.0)
    assert one.efficiency == pytest.approx(1)
    assert one.steps_per_s == pytest.approx(1024 * model.G1.steps_per_s[1])


def test_a_longer_period_needs_less_communication(model: Any) -> None:
    times = [model.predict(model.g1(), 64, model.SLOW, 0.0, period=period).communication_s for period in (1, 4, 16)]
    assert times == sorted(times, reverse=True)


def test_large_sums_over_slow_links_take_as_long_as_in_the_model(model: Any) -> None:
    for name in ("1 Gbit/s, 1 ms", "100 Mbit/s, 10 ms"):
        link = model.LINK_SUMS[name]
        for value_bytes in (4, 2):
            predicted = model.ring_s(1e6 * value_bytes, 2, model.link_network(link))
            assert predicted == pytest.approx(link.seconds[1_000_000, value_bytes], rel=0.25)


def test_the_halo_is_the_surface_of_a_cube(model: Any) -> None:
    one = model.partition(1000 * 64, 64, model.ETHERNET)
    assert one.halo == pytest.approx(600)
    assert one.bodies == 1000
    assert one.exchange_s == pytest.approx(6 * 20e-6 + 600 * 24 / 10e9)
