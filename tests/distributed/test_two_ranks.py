"""Internal values of two ranks. All tests check the same launch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import probe
import pytest
from own_ranks import results_of

from mjlab_dist.machine.control_groups import cores

pytestmark = pytest.mark.slow

RANKS = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_NOTES", "passed on")
        threads = max(1, cores() // RANKS)
        return results_of(probe.probe, tmp_path_factory.mktemp("ranks"), ranks=RANKS, torch_threads=threads)


def test_policies_start_and_stay_bit_identical(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    assert len(first["states"]) == probe.ITERATIONS + 1
    for after_first, after_second in zip(first["states"], second["states"], strict=True):
        assert after_first == after_second
    assert first["learning_rate"] == second["learning_rate"]


def test_every_update_changes_the_policy(ranks: list[dict[str, Any]]) -> None:
    states = ranks[0]["states"]
    assert all(a != b for a, b in itertools.pairwise(states))


def test_ranks_started_from_different_seeds(ranks: list[dict[str, Any]]) -> None:
    assert [r["seed"] for r in ranks] == [probe.SEED, probe.SEED + 1]
    assert ranks[0]["drawn"] != ranks[1]["drawn"], "else the broadcast of parameters is not tested"


def test_ranks_simulate_different_envs(ranks: list[dict[str, Any]]) -> None:
    first, second = (np.array(r["first_obs"]) for r in ranks)
    assert first.shape == (probe.NUM_ENVS, 5)
    assert not np.isclose(first, second).all(axis=1).any()


def test_gradient_is_the_mean_over_ranks(ranks: list[dict[str, Any]]) -> None:
    local = np.array([r["local_gradient"] for r in ranks])
    assert not np.allclose(local[0], local[1])
    for r in ranks:
        np.testing.assert_allclose(r["averaged_gradient"], local.mean(axis=0), rtol=1e-5, atol=1e-8)


def test_one_collective_per_mini_batch(ranks: list[dict[str, Any]]) -> None:
    """In addition to one collective per mini-batch, an iteration has two collectives.

    Before the update, ranks sum the means and variances of advantages and observations. After it, they sum metrics.
    """
    agent = probe.own_config().agent
    for r in ranks:
        assert r["collectives"] == [agent.num_learning_epochs * agent.num_mini_batches + 2] * probe.ITERATIONS


def test_host_waits_once_an_iteration(ranks: list[dict[str, Any]]) -> None:
    """The host waits only once, for the transfer of metrics. The probe does not count this wait, so the count is 0."""
    for r in ranks:
        assert r["waits"] == [0] * probe.ITERATIONS


def test_metrics_cover_all_ranks(ranks: list[dict[str, Any]]) -> None:
    rows = [{k: v for k, v in r["row"].items() if k != "elapsed_s"} for r in ranks]
    assert rows[0] == rows[1]
    row = rows[0]
    assert row["total_steps"] == RANKS * probe.NUM_ENVS * probe.STEPS * probe.ITERATIONS
    # 24 steps in episodes of 10: after a first episode of random length, each env ends one or two whole episodes.
    assert row["mean_episode_length"] == 10
    assert 0 < row["mean_return"] <= 10


def test_every_rank_has_its_threads_backend_and_variables(ranks: list[dict[str, Any]]) -> None:
    for r in ranks:
        assert r["threads"] == max(1, cores() // RANKS)
        assert r["backend"] == "gloo"
        assert r["captured_before_group"]
        assert r["wandb_variable"] == "passed on"
