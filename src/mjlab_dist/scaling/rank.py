"""Times that each rank measures while it trains. Imports no torch until a rank runs."""

from __future__ import annotations

from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankPlan
from mjlab_dist.distributed.rank_info import RankInfo
from mjlab_dist.worker import joined


@dataclass(frozen=True, kw_only=True)
class IterationTimes:
    """Times of one iteration of one rank, in s. Computing times do not include collectives."""

    # From the start of the iteration to the start of the next one
    wall_s: float
    # Physics
    physics_s: float
    # Control steps without the physics
    env_s: float
    # The rest of the rollout: actions of the policy, storing the samples
    policy_s: float
    # Returns, advantages and mini-batches
    update_s: float
    # Time of each collective (exchange of data between all ranks), from this rank's arrival to the end of the
    # collective. All ranks call the collectives in the order of this list.
    waits_s: list[float]


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """Times of one rank."""

    # The rank, its host and its device
    info: RankInfo
    # All iterations but the last one
    iterations: list[IterationTimes]
    # Memory in use at the end, in MB (10^6 bytes): of the GPU, or of this process on a CPU
    memory_mb: float


def time_rank(config: TrainConfig, plan: RankPlan, control: Control) -> RankTimes:
    """Train on this rank and measure times."""
    with joined(config, plan) as learner:
        import torch

        from mjlab_dist.learn.metrics import memory_mb  # imports torch
        from mjlab_dist.scaling.timing import Timing

        timing = Timing(config.agent.num_steps_per_env)
        learner.runner.hooks.append(timing)
        learner.runner.train(control)
        return RankTimes(
            info=learner.info,
            iterations=timing.iterations(learner.runner),
            memory_mb=memory_mb(torch.device(learner.runner.env.device)),
        )
