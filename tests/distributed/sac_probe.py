"""Functions for the ranks of test_sac.py: soft actor-critic on artificial rollouts."""

from __future__ import annotations

import os
from typing import Any

import torch
from own_ranks import Saved
from rollouts import collect_for_sac, make_data, make_sac, sac_config

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankPlan, rank_from_environment
from mjlab_dist.distributed.group import meet, process_group
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.synchronizer import AllReduce, LocalUpdates, Synchronizer
from mjlab_dist.learn.learner import flatten

NUM_ENVS = 8
ITERATIONS = 3


def train(rank: Rank, num_envs: int, synchronizer: Synchronizer, **fields: Any) -> list[dict[str, Any]]:
    """Learn from some envs of all. Return metrics and state after each iteration."""
    torch.manual_seed(rank.rank)  # ranks start with different parameters; then all get those of rank 0
    learner = make_sac(sac_config(**fields), num_envs, synchronizer, rank)
    envs = list(range(rank.rank * num_envs, (rank.rank + 1) * num_envs))
    history = []
    for iteration in range(ITERATIONS):
        collect_for_sac(learner, make_data(rank.world_size * num_envs, iteration).part(envs))
        metrics = {name: value.item() for name, value in learner.update().items()}
        if not synchronizer.keeps_equal and synchronizer.due(iteration + 1):
            learner.replicas.average()
        history.append({"metrics": metrics, "state": {k: t.clone() for k, t in flatten(learner.save()).items()}})
    return history


def alone(world_size: int) -> list[dict[str, Any]]:
    """Train one process with the envs of all ranks."""
    torch.set_default_dtype(torch.float64)
    try:
        return train(Rank(), world_size * NUM_ENVS, AllReduce())
    finally:
        torch.set_default_dtype(torch.float32)


def probe(config: TrainConfig, plan: RankPlan, control: Control) -> Saved:  # noqa: ARG001
    rank = rank_from_environment(os.environ)
    torch.set_num_threads(1)
    with process_group(rank, "cpu", "gloo", meet(rank)):
        torch.set_default_dtype(torch.float64)
        exact = train(rank, NUM_ENVS, AllReduce())
        torch.set_default_dtype(torch.float32)
        rounded = train(rank, NUM_ENVS, AllReduce("bf16"), learn_temperature=False, num_quantiles=3)
        local = train(rank, NUM_ENVS, LocalUpdates(ITERATIONS))
    return Saved.of(plan, rank.rank, {"exact": exact, "rounded": rounded, "local": local})
