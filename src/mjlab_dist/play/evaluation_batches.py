"""Batches of episodes. Each batch is played by one rank.

The random seed depends on the batch, not on the rank, so all ranks get the same result for a batch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankPlan, rank_from_environment
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.seeding import seed_generators
from mjlab_dist.garbage_collection import frozen
from mjlab_dist.imports import start_up
from mjlab_dist.launch.worker import prepare_process
from mjlab_dist.learner import free_earlier_run
from mjlab_dist.messages import emit

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

# Maximum number of progress reports
MAX_REPORTS = 10


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Episodes that are simulated together."""

    # Index of the config in Job.configs
    point: int
    # Whether actions are sampled
    sampled: bool
    # Index of the batch among the batches with the same config and kind of actions. The random seed of the batch is
    # derived from this index.
    index: int
    # ID of the first env of the batch
    first_env_id: int
    # Number of envs; each plays one episode
    num_envs: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """All batches of an evaluation."""

    configs: tuple[TrainConfig, ...]
    # The batches. A batch is identified by its position in this tuple.
    batches: tuple[Batch, ...]
    checkpoint: Path
    seed: int


@dataclass(frozen=True, kw_only=True)
class BatchSums:
    """Results of a batch, summed over its episodes. Columns: :func:`~mjlab_dist.env.whole_episodes.episode_columns`."""

    # Position of the batch in the job
    position: int
    num_episodes: int
    # Sum of the values of each column
    sums: dict[str, float]
    # Sum of the squared values of each column
    squares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RankSums:
    """Results of a rank."""

    # Sums of the batches that the rank played, in the order of Job.batches
    batches: list[BatchSums]


def split(num_episodes: int, num_envs: int) -> list[tuple[int, int]]:
    """Return the first env id and the number of envs of each batch."""
    return [(first, min(num_envs, num_episodes - first)) for first in range(0, num_episodes, num_envs)]


def play_batches(job: Job, config: TrainConfig, plan: RankPlan, control: Control) -> RankSums:  # noqa: ARG001 (an Entry)
    """Play the batches of this rank. With n ranks, rank r plays the batches r, r + n, r + 2n, ..."""
    rank = rank_from_environment(os.environ)
    with start_up():
        prepare_process(plan.device, rank, job.seed)
        import mjlab_dist.env.whole_episodes  # imports torch
        import mjlab_dist.learn  # noqa: F401 (imports torch)
    own = range(rank.rank, len(job.batches), rank.world_size)
    results, reported = [], 0
    with frozen():  # the garbage collector then visits only objects that are created for the batches
        for count, position in enumerate(own):
            results.append(_play(job, position, plan.device.device, control))
            # Progress: rank 0 reports its own progress, as an estimate for all ranks
            reached = MAX_REPORTS * (count + 1) // len(own)
            if rank.is_main and reached > reported:
                reported = reached
                emit("status", text=f"Played {100 * (count + 1) // len(own)}% of {len(job.batches)} batches.")
    return RankSums(batches=results)


def _play(job: Job, position: int, device: str, control: Control) -> BatchSums:
    """Play a batch in new envs."""
    from mjlab_dist.env import Env  # imports torch
    from mjlab_dist.env.whole_episodes import episode_columns, play_episodes
    from mjlab_dist.learn import load_policy

    # Envs and policy
    batch = job.batches[position]
    config = job.configs[batch.point]
    free_earlier_run(device)
    seed_generators(job.seed, batch.index)
    env = Env(config.env, batch.num_envs, device, batch.first_env_id)
    policy = load_policy(env, config, job.checkpoint)

    # Episodes
    def act(obs: TensorDict) -> torch.Tensor:
        return policy(obs, stochastic_output=batch.sampled)

    values = play_episodes(env, act, policy.reset, lambda: control.beat(position))
    names = episode_columns(env)
    return BatchSums(
        position=position,
        num_episodes=batch.num_envs,
        sums=dict(zip(names, values.sum(dim=1).tolist(), strict=True)),
        squares=dict(zip(names, values.square().sum(dim=1).tolist(), strict=True)),
    )
