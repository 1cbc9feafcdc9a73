"""Checks of ``--fsdp-devices``, for which :mod:`mjlab_dist.learn.sharded_ppo` splits parameters over ranks."""

from __future__ import annotations

from mjlab_dist.config.run import TrainConfig
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed


def validate_fsdp(config: TrainConfig) -> None:
    """Raise if parameters are to be split, and another field excludes this."""
    sync = config.sync
    period, own = f"--sync.period {sync.period}", f"--sync.synchronizer {sync.synchronizer}"
    gathers = "FSDP2 gathers parameters from other ranks in every control step, which a CUDA graph cannot contain"
    for excluded, other, reason in (
        (sync.period > 1, period, "ranks that share parameters cannot train separately"),
        (sync.synchronizer is not None, own, "FSDP2 itself averages sharded gradients"),
        (config.env.sim.capture == "step", "--env.sim.capture step", gathers),
    ):
        if excluded and config.fsdp_devices > 1:
            raise UserError(
                f"--fsdp-devices {config.fsdp_devices}: cannot be combined with {other}, because {reason}; drop one of "
                "the two"
            )


def validate_shards(config: TrainConfig, world_size: int) -> None:
    """Raise if the ranks cannot form groups that share parameters."""
    if world_size % config.fsdp_devices:
        divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        raise UserError(
            f"--fsdp-devices {config.fsdp_devices}: does not divide the run's {ranks}; use {listed(divisors, 'or')}"
        )
