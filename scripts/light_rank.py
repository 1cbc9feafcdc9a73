"""A rank without envs and networks, for bench_ranks.py.

The rank joins the other ranks, sums metrics, compares tensors and gathers the state of all ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan, rank_from_environment
from mjlab_dist.distributed.consistency import check_equal
from mjlab_dist.distributed.group import gather_on_main, meet, process_group
from mjlab_dist.distributed.rank_info import exchange
from mjlab_dist.env import EpisodeTotals
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.clock import Clock
from mjlab_dist.learn.metrics import Metrics, Sample
from mjlab_dist.messages import emit
from mjlab_dist.worker import set_interfaces

ITERATIONS = 20

STATE_NUMBERS = 2500
"""Count of numbers that a rank adds to a checkpoint. They take 10 kB, about as much as the state of 64 cartpoles."""

NUM_TENSORS = 40
"""Number of tensors that ranks compare. Two networks of three layers, with the state of Adam, have about as many."""


@dataclass(frozen=True, kw_only=True)
class Bookkeeping:
    """Time that a rank spent on bookkeeping, and counts to check it."""

    rank: int
    """Global rank."""
    joined_s: float
    """Seconds to meet the other ranks and join the process group."""
    metrics_s: float
    """Mean time to sum the metrics of an iteration over ranks and to send its events, in s."""
    checkpoint_s: float
    """Seconds to compare tensors and gather the state of all ranks, and on rank 0 also to write this state."""
    num_episodes: int
    """Episodes of the last iteration, over all ranks."""
    num_states: int
    """Number of ranks whose state this rank gathered."""


def light_rank(config: TrainConfig, plan: RankPlan, control: Control) -> Bookkeeping:  # noqa: ARG001 (all entries take it)
    """Join the other ranks, and do the bookkeeping of a run."""
    rank, start_s = rank_from_environment(os.environ), time.perf_counter()
    set_interfaces(rank, os.environ)
    store = meet(rank)
    exchange(store, rank.rank, rank.world_size, "device", "cpu")
    with process_group(rank, "cpu", "gloo", store):
        joined_s = time.perf_counter() - start_s
        return keep_books(rank.rank, rank.world_size, plan, joined_s, control)


def keep_books(
    rank: int,
    world_size: int,
    plan: RankPlan,
    joined_s: float,
    control: Control,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Bookkeeping:
    """Sum metrics of :data:`ITERATIONS` iterations, then write a checkpoint.

    Args:
        rank: Global rank.
        world_size: Number of ranks.
        plan: Plan of the rank, with the run directory.
        joined_s: Seconds that joining took.
        control: Receives heartbeats.
        clock: Returns seconds.
    """
    # In each iteration, sum the metrics over ranks, and send events
    metrics = Metrics(
        rank=rank, world_size=world_size, num_samples=64, episode_names=("reward/x",), num_parameters=100,
        clock=Clock("cpu"),
    )  # fmt: skip
    row, start_s = {}, clock()
    for iteration in range(1, ITERATIONS + 1):
        row = metrics.outcome(iteration, _sample()).row
        control.beat(iteration)
        if rank == 0:
            emit("iteration", row=row)
    metrics_s = (clock() - start_s) / ITERATIONS
    # Write a checkpoint
    start_s = clock()
    check_equal({str(i): torch.full((100,), float(i)) for i in range(NUM_TENSORS)}, "at the end")
    states = gather_on_main(torch.full((STATE_NUMBERS,), float(rank)))
    if rank == 0:
        assert [int(state[0]) for state in states] == list(range(world_size))
        checkpoint.save(plan.run_dir / "states.pt", {"ranks": states})
    return Bookkeeping(
        rank=rank,
        joined_s=joined_s,
        metrics_s=metrics_s,
        checkpoint_s=clock() - start_s,
        num_episodes=int(row["episodes"] or 0),
        num_states=len(states),
    )


def _sample() -> Sample:
    def zero() -> torch.Tensor:
        return torch.zeros(())

    one = torch.ones(1)
    totals = EpisodeTotals(
        episodes=one[0], steps=one[0], terms=one, unweighted=one, terminations=one[:0], metrics=one[:0]
    )
    return Sample(
        totals=totals, curricula={}, reward=zero(), losses={"value": zero()}, kl=zero(), learning_rate=zero(),
        action_std=zero(), spread=zero(), overflows=zero(), collect_s=1.0, learn_s=1.0, wait_s=0.1,
        not_finite=zero(), nan_resets=zero(), wants_stop=False, wants_save=False,
    )  # fmt: skip
