"""Functions for the ranks of test_learner.py: update on artificial rollouts with every kind of synchronization."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
import torch.distributed as dist
from own_ranks import Saved
from rollouts import (
    AGENT,
    MINI_BATCHES,
    STEPS,
    collect,
    fix_order,
    make_data,
    make_learner,
    state_of,
    train_config,
)

from mjlab_dist.config import RndConfig, SymmetryConfig, SyncConfig, TrainConfig
from mjlab_dist.distributed import Rank, RankPlan, rank_from_environment
from mjlab_dist.distributed.group import gather, meet, process_group
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.synchronizer import AllReduce, LocalUpdates
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.sharded_ppo import ShardedPPO

NUM_ENVS = 8
ITERATIONS = 2
TINY = SyncConfig(fsdp_min_size_mb=1e-4)
"""Minimum size of a sharded parameter. It is so small that every parameter with two dimensions is sharded."""

MIRROR_LOSS = SymmetryConfig(func="rollouts:mirrored", mirror_loss_coef=0.5)
RND = RndConfig(weight=0.5, num_outputs=4, state_normalization=True, reward_normalization=True)

VARIANTS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "mini-batch": {"advantage_normalization": "mini-batch"},
    "lstm": {"rnn": "lstm"},
    "clipped": {"max_grad_norm": 0.05, "schedule": "fixed"},
    "scaled": {"reward_normalization": True},
    "mirrored": {"symmetry": dataclasses.replace(MIRROR_LOSS, use_data_augmentation=True)},
    "mirror loss": {"symmetry": MIRROR_LOSS},
    "rnd": {"rnd": RND},
    "rnd lstm": {"rnd": RND, "rnn": "lstm"},
    "bf16": {"precision": "bf16"},
}
"""Changes of the agent's config. With each change, the update must not depend on the number of ranks."""


def config(variant: str) -> Any:
    return train_config(dataclasses.replace(AGENT, **VARIANTS[variant]))


def order_of_envs(variant: str, world_size: int) -> list[int]:
    """Return the order of all ranks' envs in the single process with which the ranks are compared.

    A mini-batch of a recurrent policy contains adjacent envs. Therefore, the envs of mini-batch i of every rank must be
    adjacent in the single process.
    """
    if "rnn" not in VARIANTS[variant]:
        return list(range(world_size * NUM_ENVS))
    size = NUM_ENVS // MINI_BATCHES
    return [
        rank * NUM_ENVS + mini_batch * size + i
        for mini_batch in range(MINI_BATCHES)
        for rank in range(world_size)
        for i in range(size)
    ]


def permutation(rank: int, iteration: int) -> torch.Tensor:
    """Return a random order of one rank's samples."""
    return torch.randperm(STEPS * NUM_ENVS, generator=torch.Generator().manual_seed(1000 * rank + iteration))


def paired_permutation(world_size: int, iteration: int) -> torch.Tensor:
    """Return an order of all ranks' samples for one process: mini-batch i consists of mini-batch i of every rank."""
    parts = [permutation(rank, iteration).chunk(MINI_BATCHES) for rank in range(world_size)]
    return torch.cat(
        [
            part[mini_batch] // NUM_ENVS * (world_size * NUM_ENVS) + rank * NUM_ENVS + part[mini_batch] % NUM_ENVS
            for mini_batch in range(MINI_BATCHES)
            for rank, part in enumerate(parts)
        ]
    )


def train(learner: PPO, envs: list[int], total: int, orders: list[torch.Tensor]) -> list[dict[str, Any]]:
    """Update once with each order of the samples. Return the losses and the state after each update."""
    history = []
    for iteration, order in enumerate(orders):
        fix_order(learner, order)
        collect(learner, make_data(total, iteration).part(envs))
        losses = {name: loss.item() for name, loss in learner.update().items()}
        history.append({**losses, "state": state_of(learner)})
    return history


def alone(variant: str, world_size: int) -> list[dict[str, Any]]:
    """Train one process with the envs of all ranks."""
    torch.set_default_dtype(torch.float32 if variant == "bf16" else torch.float64)
    torch.manual_seed(0)
    total = world_size * NUM_ENVS
    learner = make_learner(config(variant), total)
    orders = [paired_permutation(world_size, i) for i in range(ITERATIONS)]
    try:
        return train(learner, order_of_envs(variant, world_size), total, orders)
    finally:
        torch.set_default_dtype(torch.float32)


def probe(config: TrainConfig, plan: RankPlan, control: Control) -> Saved:  # noqa: ARG001
    rank = rank_from_environment(os.environ)
    return Saved.of(plan, rank.rank, _results(rank))


def _results(rank: Rank) -> dict[str, Any]:
    torch.set_num_threads(1)
    results: dict[str, Any] = {"rank": rank.rank}
    with process_group(rank, "cpu", "gloo", meet(rank)):
        for variant in VARIANTS:
            torch.set_default_dtype(torch.float32 if variant == "bf16" else torch.float64)
            results[variant] = _train_here(rank, config(variant))
        torch.set_default_dtype(torch.float64)
        results["local"] = _local_updates(rank)
        results["agreed"] = _agreed(rank, config("rnd"))
        for fsdp_devices in (2, 4):
            if rank.world_size == 4:
                sharded = dataclasses.replace(config("rnd"), fsdp_devices=fsdp_devices, sync=TINY)
                results[f"fsdp {fsdp_devices}"] = _train_here(rank, sharded)
                results[f"fsdp {fsdp_devices} agreed"] = _agreed(rank, sharded)
                results[f"fsdp {fsdp_devices} loaded"] = _load(rank, sharded, results["rnd"])
        if rank.world_size == 4:
            results["fsdp lstm"] = _train_here(rank, dataclasses.replace(config("lstm"), fsdp_devices=2, sync=TINY))
        torch.set_default_dtype(torch.float32)
        results["reduced"] = {name: _reduced(rank, name) for name in ("none", "bf16", "fp16")}
        results["fp32"] = _train_here(rank, config("mlp"))
        results["compressed"] = _train_here(rank, config("mlp"), AllReduce("bf16"))
        if rank.world_size == 4:
            bf16 = dataclasses.replace(TINY, compression="bf16")
            compressed = dataclasses.replace(config("mlp"), fsdp_devices=2, sync=bf16)
            results["fsdp compressed"] = _train_here(rank, compressed)
    return results


def _make(rank: Rank, run: Any, synchronizer: Any = None) -> PPO:
    torch.manual_seed(rank.rank)  # ranks start with different parameters; then all get those of rank 0
    return make_learner(run, NUM_ENVS, synchronizer)


def _envs(rank: Rank) -> list[int]:
    return list(range(rank.rank * NUM_ENVS, (rank.rank + 1) * NUM_ENVS))


def _train_here(rank: Rank, run: Any, synchronizer: Any = None) -> list[dict[str, Any]]:
    learner = _make(rank, run, synchronizer)
    orders = [permutation(rank.rank, i) for i in range(ITERATIONS)]
    history = train(learner, _envs(rank), rank.world_size * NUM_ENVS, orders)
    history[0]["sharded"] = [part.name for part in learner.parts.values()] if isinstance(learner, ShardedPPO) else []
    return history


def _load(rank: Rank, run: Any, source: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Update a learner without shards once, load its checkpoint into a sharded learner, and update this learner."""
    plain = _make(rank, config("rnd"))
    train(plain, _envs(rank), rank.world_size * NUM_ENVS, [permutation(rank.rank, 0)])
    other = _make(rank, run)
    momentum = {i: {"momentum_buffer": torch.zeros(1)} for i in range(99)}
    foreign = {**plain.save(), "optimizer_state_dict": {"state": momentum, "param_groups": []}}
    other.load(foreign, {"actor": True, "critic": True}, True)  # as --init-from, which loads no optimizer
    for name in ("actor_state_dict", "critic_state_dict"):
        assert all(torch.equal(t, plain.save()[name][key]) for key, t in other.save()[name].items())
    other.load(plain.save(), None, True)
    other.load_memory(plain.memory())
    before = state_of(other)
    assert all(torch.equal(t, source[0]["state"][name]) for name, t in before.items())
    fix_order(other, permutation(rank.rank, 1))
    collect(other, make_data(rank.world_size * NUM_ENVS, 1).part(_envs(rank)))
    other.update()
    return state_of(other)


def _local_updates(rank: Rank) -> dict[str, Any]:
    learner = _make(rank, config("rnd"), LocalUpdates(ITERATIONS))
    orders = [permutation(rank.rank, i) for i in range(ITERATIONS)]
    history = train(learner, _envs(rank), rank.world_size * NUM_ENVS, orders)
    before = state_of(learner)
    spread = learner.replicas.average()
    return {"first": history[0]["state"], "before": before, "after": state_of(learner), "spread": spread.item()}


def _agreed(rank: Rank, run: Any) -> dict[str, Any]:
    """Update once, change the learners of some ranks, and let all ranks take over rank 0's learner.

    Ranks with the same shards are `fsdp_devices` ranks apart, and get different changes.
    """
    learner = _make(rank, run)
    train(learner, _envs(rank), rank.world_size * NUM_ENVS, [permutation(rank.rank, 0)])
    with torch.no_grad():
        optimizers = [learner.optimizer]
        normalizers: list[Any] = [learner.actor.obs_normalizer, learner.critic.obs_normalizer]
        if learner.intrinsic is not None:
            optimizers.append(learner.intrinsic.optimizer)
            normalizers += [learner.intrinsic.rnd.state_normalizer, learner.intrinsic.rnd.reward_normalizer.emp_norm]
        for optimizer in optimizers:
            for parameter, tensors in optimizer.state.items():
                tensors["exp_avg"] += rank.rank // run.fsdp_devices
                parameter.add_(rank.rank // run.fsdp_devices)
        for normalizer in normalizers:
            normalizer._mean += rank.rank // run.fsdp_devices
        learner.rate += rank.rank // run.fsdp_devices
    before = state_of(learner)
    learner.replicas.unlike_ranks = [1]
    learner.agree()
    return {"before": before, "after": state_of(learner)}


def _reduced(rank: Rank, name: str) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(rank.rank)
    buffer = torch.randn(1000, generator=g)
    all_ranks = gather(buffer)
    AllReduce(name).reduce(buffer)
    assert dist.get_world_size() == len(all_ranks)
    return {"ranks": all_ranks, "buffer": buffer}
