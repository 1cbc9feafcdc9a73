"""Rows of metrics on one rank."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest
import torch

from mjlab_dist.env import EpisodeTotals
from mjlab_dist.learn.metrics import WINDOW_EPISODES, Clock, Metrics, Row, Sample

COLUMNS = ("reward/upright", "reward/effort", "termination/time_limit", "termination/fallen", "metric/success")


def sample(
    episodes: int = 0,
    steps: float = 0,
    terms: tuple[float, ...] = (0.0, 0.0),
    terminations: tuple[float, ...] = (0.0, 0.0),
    metrics: tuple[float, ...] = (0.0,),
    **other: Any,
) -> Sample:
    """Return measurements of a rank. Values of episodes are sums over the episodes that ended."""
    measured = {
        "curricula": {},
        "reward": torch.tensor(0.5),
        "measured": {"loss/value": torch.tensor(2.0), "loss/surrogate": torch.tensor(-1.0), "kl": torch.tensor(0.25)},
        "learning_rate": torch.tensor(1e-3),
        "action_std": torch.tensor(0.75),
        "spread": torch.tensor(math.nan),
        "wait_s": 0.5,
        "overflows": torch.tensor(3),
        "collect_s": 1.5,
        "learn_s": 0.5,
        "not_finite": torch.tensor(0),
        "nan_resets": torch.tensor(0),
        "wants_stop": False,
        "wants_save": False,
        **other,
    }
    return Sample(
        EpisodeTotals(
            episodes=torch.tensor(float(episodes)),
            steps=torch.tensor(float(steps)),
            terms=torch.tensor(terms),
            unweighted=torch.tensor(terms),
            terminations=torch.tensor(terminations),
            metrics=torch.tensor(metrics),
        ),
        **measured,
    )


def start(iteration: int = 0, counters: dict[str, Any] | None = None) -> Metrics:
    return Metrics(
        rank=0,
        world_size=1,
        num_samples=64,
        episode_names=COLUMNS,
        num_parameters=100,
        clock=Clock("cpu"),
        iteration=iteration,
        counters=counters,
    )


def rows(samples: list[Sample]) -> list[Row]:
    metrics = start()
    return [metrics.outcome(i, s).row for i, s in enumerate(samples, 1)]


def number(row: Row, name: str) -> float:
    value = row[name]
    assert value is not None
    return value


EPISODE_METRICS = ("mean_return", "mean_episode_length", "reward/upright", "reward/effort")


def test_episode_metrics_are_means_over_episodes():
    (row,) = rows([sample(4, 100, (20.0, -6.0))])
    assert row["episodes"] == 4
    assert row["mean_episode_length"] == 25.0
    assert row["reward/upright"] == 5.0
    assert row["reward/effort"] == -1.5
    assert row["mean_return"] == 3.5


def test_shares_and_counts_of_reasons_and_metrics_are_over_episodes():
    early = sample(80, 800, terminations=(60.0, 40.0), metrics=(20.0,))
    first, second = rows([early, sample(20, 200, terminations=(0.0, 20.0), metrics=(20.0,))])
    assert (first["termination/time_limit"], first["termination/fallen"], first["metric/success"]) == (0.75, 0.5, 0.25)
    assert (second["termination/time_limit"], second["termination/fallen"], second["metric/success"]) == (0.6, 0.6, 0.4)
    assert (first["num_termination/fallen"], second["num_termination/fallen"]) == (40, 20)


def test_episodes_of_other_columns_are_dropped_on_resume():
    counters = start().counters()
    other = start(1, {**counters, "episodes": [[5.0, 50.0, 1.0]]})
    assert other.outcome(2, sample()).row["mean_return"] is None


def test_iterations_without_an_episode_keep_the_last_means():
    first, *made = rows([sample(), sample(2, 50, (8.0, -2.0)), sample(), sample()])
    assert all(first[name] is None for name in EPISODE_METRICS)
    assert first["mean_step_reward"] == 0.5
    assert [row["episodes"] for row in made] == [2, 0, 0]
    for row in made[1:]:
        assert [row[name] for name in EPISODE_METRICS] == [made[0][name] for name in EPISODE_METRICS]


def test_the_window_is_the_shortest_that_holds_enough_episodes():
    rng = random.Random(1)
    counts = [rng.choice([0, 0, 3, 17, 40, 99, 100, 130]) for _ in range(200)]
    values = [rng.randint(-50, 50) for _ in counts]
    made = rows([sample(n, 2 * n, (float(n * v), 0.0)) for n, v in zip(counts, values, strict=True)])
    for i, row in enumerate(made):
        first = next((j for j in range(i, 0, -1) if sum(counts[j : i + 1]) >= WINDOW_EPISODES), 0)
        count = sum(counts[first : i + 1])
        total = sum(n * v for n, v in zip(counts[first : i + 1], values[first : i + 1], strict=True))
        assert row["mean_return"] == (pytest.approx(total / count) if count else None)


def test_a_row_contains_steps_times_losses_and_the_state_of_the_policy():
    spread = torch.tensor(4.0)
    first, second = rows([sample(spread=spread), sample(collect_s=3.0, learn_s=1.0)])
    assert (first["iteration"], second["iteration"]) == (1, 2)
    assert (first["total_steps"], second["total_steps"]) == (64, 128)
    assert (first["steps_per_s"], second["steps_per_s"]) == (32.0, 16.0)
    assert (second["collect_s"], second["learn_s"]) == (3.0, 1.0)
    assert (first["wait_share"], second["wait_share"]) == (0.25, 0.125)
    assert (second["kl"], second["parameter_spread"]) == (0.25, None)
    assert first["parameter_spread"] == 0.2  # sqrt(4 / 100): there are 100 parameters
    assert (first["loss/value"], first["loss/surrogate"]) == (2.0, -1.0)
    assert number(first, "learning_rate") == pytest.approx(1e-3)
    assert first["action_std"] == 0.75
    assert first["overflowed_envs"] == 3
    assert all(type(first[name]) is int for name in ("iteration", "total_steps", "episodes", "overflowed_envs"))
    assert 0 <= number(first, "elapsed_s") <= number(second, "elapsed_s")


def test_a_row_contains_the_progress_of_curricula():
    far = {"terrain/level": torch.tensor(2.5), "range/share": torch.tensor(0.25)}
    (row,) = rows([sample(curricula=far)])
    assert (row["curriculum/terrain/level"], row["curriculum/range/share"]) == (2.5, 0.25)
    assert not any(name.startswith("curriculum/") for name in rows([sample()])[0])


def test_an_outcome_contains_the_totals_that_curricula_read():
    outcome = start().outcome(1, sample(4, 100, (20.0, -6.0)))
    assert (outcome.totals.episodes, outcome.totals.steps) == (4, 100)
    assert outcome.totals.terms.tolist() == [20.0, -6.0]
    assert outcome.totals.terms.dtype == torch.float32
    assert outcome.totals.unweighted.tolist() == [20.0, -6.0]
    assert outcome.totals.terminations.tolist() == [0.0, 0.0]
    assert outcome.totals.metrics.tolist() == [0.0]


def test_rows_continue_from_restored_counters():
    rng = random.Random(2)
    samples = [sample(n, 2 * n, (float(3 * n), -1.0)) for n in rng.choices(range(60), k=12)]
    whole = rows(samples)
    first = start()
    parts = [first.outcome(i, s).row for i, s in enumerate(samples[:7], 1)]
    counters = json.loads(json.dumps(first.counters()))  # checkpoints contain only plain values
    second = start(7, counters)
    parts += [second.outcome(i, s).row for i, s in enumerate(samples[7:], 8)]
    elapsed_s = [number(row, "elapsed_s") for row in parts]
    assert elapsed_s == sorted(elapsed_s)
    for row, other in zip(parts, whole, strict=True):
        assert {**row, "elapsed_s": 0} == {**other, "elapsed_s": 0}
