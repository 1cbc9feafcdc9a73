"""Advice during training: when it is printed, and which ranks and flags it names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.learn import metrics
from mjlab_dist.learn.metrics import WINDOW, Advice, waiting_advice
from mjlab_dist.messages import listening


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


NUM_ENVS = 24
"""Number of envs per rank; the config has another."""


def warnings(watched: Advice, shares: list[tuple[float, ...]]) -> list[str]:
    """Return the advice that is printed during a run."""
    events: list[dict[str, Any]] = []
    with listening(events.append):
        for iteration, one in enumerate(shares, 1):
            watched.check(iteration, one)
    assert all(event["kind"] == "warning" for event in events)
    return [event["text"] for event in events]


def test_ranks_that_wait_for_a_slow_one_are_named(config: TrainConfig) -> None:
    text = waiting_advice([0.4, 0.02, 0.3], config)
    assert text is not None
    assert text.startswith("ranks 0, 2 wait for rank 1")
    assert "40%" in text
    assert "mjlab-dist verify cartpole-balance" in text


def test_ranks_that_all_wait_need_fewer_collectives(config: TrainConfig) -> None:
    text = waiting_advice([0.3, 0.35, 0.3], config)
    assert text is not None
    assert "--sync.period (now 1)" in text
    assert "35%" in text


def test_a_quarter_is_allowed(config: TrainConfig) -> None:
    assert waiting_advice([0.25, 0.0, 0.2], config) is None


def test_waiting_is_averaged_and_reported_once(config: TrainConfig) -> None:
    calm, long = (0.1, 0.1, 0.0), (0.6, 0.6, 0.0)
    assert warnings(Advice(config, Rank(world_size=3), "cpu", NUM_ENVS), [calm] * (WINDOW - 5) + [long] * 5) == []
    (text,) = warnings(Advice(config, Rank(world_size=3), "cpu", NUM_ENVS), [calm] * WINDOW + [long] * 3 * WINDOW)
    assert "60%" in text


@pytest.mark.parametrize("rank", [Rank(rank=1, local_rank=1, world_size=3), Rank()])
def test_only_rank_0_of_several_reports_waiting(config: TrainConfig, rank: Rank) -> None:
    assert warnings(Advice(config, rank, "cpu", NUM_ENVS), [(0.6, 0.6, 0.0)] * WINDOW) == []


def test_memory_that_is_nearly_full_is_reported_once_per_machine(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    calm = [(0.0, 0.0, 0.0)] * 40
    first = Rank(world_size=6, local_world_size=3)
    second = dataclasses.replace(first, rank=1, local_rank=1)
    other = dataclasses.replace(first, rank=3)
    monkeypatch.setattr(metrics, "memory_mb", lambda _: 1000.0)
    monkeypatch.setattr(metrics, "free_cpu_bytes", lambda: 200e6)  # the 3 ranks use 1 GB each
    assert warnings(Advice(config, first, "cpu", NUM_ENVS), calm) == []
    monkeypatch.setattr(metrics, "free_cpu_bytes", lambda: 100e6)
    (text,) = warnings(Advice(config, first, "cpu", NUM_ENVS), calm)
    assert f"--num-envs (now {NUM_ENVS})" in text
    assert "this machine" in text
    assert warnings(Advice(config, second, "cpu", NUM_ENVS), calm) == []
    (text,) = warnings(Advice(config, other, "cpu", NUM_ENVS), calm)
    assert "the machine of rank 3" in text


@pytest.mark.parametrize(("rank", "where"), [(Rank(), "the GPU"), (Rank(rank=1, world_size=2), "the GPU of rank 1")])
def test_a_gpu_whose_memory_is_nearly_full_is_named(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, rank: Rank, where: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1e9, 80e9))
    (text,) = warnings(Advice(config, rank, "cuda:0", NUM_ENVS), [(0.0, 0.0)] * 40)
    assert f" left on {where}; " in text
