"""The envs of several ranks, concatenated, equal the envs of one rank bit for bit in every task."""

from __future__ import annotations

import pytest
import torch
from configs import changed
from every_task import NAMES, config_of

from mjlab_dist.config import TrainConfig
from mjlab_dist.simulate.make import Job, Tensors
from mjlab_dist.simulate.shard import Shard

NUM_ENVS = 33

NUM_STEPS = 40

DEFAULT = ("cartpole-swingup", "everything")
"""Tasks of the default test run: one whose reward is a product, and one with every kind of term."""


def make(config: TrainConfig, rank: int, num_ranks: int, *, final: bool = False) -> Shard:
    job = Job(configs=(config,), num_envs=NUM_ENVS, seed=3, final_observations=final)
    return Shard(job, job.rows(rank, num_ranks), "cpu")


def simulated(shard: Shard, num_steps: int) -> list[Tensors]:
    """Reset and simulate. An env's actions depend only on its id in the whole job. Return all results and the state."""
    generator = torch.Generator().manual_seed(0)
    results = [shard.reset(None)]
    for _ in range(num_steps):
        actions = torch.randn(NUM_ENVS, shard.sizes.num_actions, generator=generator)
        results.append(shard.step(actions[shard.rows.start : shard.rows.stop]))
    state = {name: value for name, value in shard.state().items() if name not in shard.shared}
    return [*results, state]


def differences(whole: list[Tensors], parts: list[list[Tensors]]) -> list[tuple[int, str]]:
    """Return the steps and the names of results that differ."""
    return [
        (step, name)
        for step, results in enumerate(whole)
        for name, value in results.items()
        if not torch.equal(value.nan_to_num(), torch.cat([part[step][name] for part in parts]).nan_to_num())
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in DEFAULT else pytest.mark.long) for name in NAMES],
)
def test_shards_together_equal_the_envs_of_one_rank(name: str) -> None:
    config = config_of(name)
    whole = simulated(make(config, 0, 1), NUM_STEPS)
    for num_ranks in (2, 3):
        parts = [simulated(make(config, rank, num_ranks), NUM_STEPS) for rank in range(num_ranks)]
        assert not differences(whole, parts), num_ranks


@pytest.mark.slow
def test_observing_before_resets_changes_nothing_else() -> None:
    config = changed(config_of("everything"), "env.episode_length_s", 0.2)
    plain, final = (simulated(make(config, 0, 1, final=final), 30) for final in (False, True))
    assert not differences(plain, [final])
    assert any(bool(results["terminated"].any() | results["truncated"].any()) for results in plain[1:-1])
