"""What a run's totals come to on a given number of ranks: envs per rank, and iterations. Imports the standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate_rollout
from mjlab_dist.errors import UserError

ALTERNATIVES = ("num_envs", "total_num_envs", "max_iterations", "total_timesteps")
"""Fields of which the second says in another way what the first says, and the fourth what the third says."""


def keep_given(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """Where a number per rank or of iterations was given, drop the total that comes from the file or the task.

    Args:
        config: The config with what was given.
        given: Names of the fields that were given, of :data:`ALTERNATIVES` at least.

    Raises:
        UserError: If the number and the total were given.
    """
    if "num_envs" in given and config.total_num_envs is not None:
        if "total_num_envs" in given:
            raise UserError(
                f"--num-envs {config.num_envs} and --total-num-envs {config.total_num_envs}: not both, since one is per rank "
                "and the other over all ranks; drop one"
            )
        config = dataclasses.replace(config, total_num_envs=None)
    elif "total_num_envs" in given and config.total_num_envs is not None and config.num_envs == "auto":
        config = dataclasses.replace(config, num_envs=TrainConfig.num_envs)
    if "max_iterations" in given and config.total_timesteps is not None:
        if "total_timesteps" in given:
            raise UserError(
                f"--max-iterations {config.max_iterations} and --total-timesteps {config.total_timesteps}: not both, since "
                "each says how long to train; drop one"
            )
        config = dataclasses.replace(config, total_timesteps=None)
    return config


def resolve(config: TrainConfig, world_size: int) -> tuple[TrainConfig, list[str]]:
    """Turn totals over all ranks into what each rank does.

    The totals stay in the config and always win, so that its file started again on other ranks keeps them. Where
    ``num_envs`` is auto, iterations are left alone: call this again once the number is known.

    Args:
        config: A config that :func:`mjlab_dist.config.checks.validate` has passed.
        world_size: Ranks over all machines.

    Returns:
        The config with ``num_envs`` and ``max_iterations`` of this number of ranks, and lines to tell the user.

    Raises:
        UserError: If the ranks cannot share the envs or the parameters, or the steps are fewer than one iteration has.
    """
    _check_sharding(config.fsdp_devices, world_size)
    if config.total_num_envs is not None:
        config = dataclasses.replace(config, num_envs=_envs_per_rank(config.total_num_envs, world_size))
    validate_rollout(config)
    if config.total_timesteps is None or config.num_envs == "auto":
        return config, []
    return _with_iterations(config, config.num_envs, config.total_timesteps, world_size)


def _check_sharding(fsdp_devices: int, world_size: int) -> None:
    if world_size % fsdp_devices:
        divisors = [str(n) for n in range(1, world_size + 1) if world_size % n == 0]
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        raise UserError(f"--fsdp-devices {fsdp_devices}: does not divide the run's {ranks}; use {_either(divisors)}")


def _envs_per_rank(total: int, world_size: int) -> int:
    if total % world_size:
        below = total // world_size * world_size
        choices = [str(n) for n in (below, below + world_size) if n]
        raise UserError(f"--total-num-envs {total} can't be split over {world_size} ranks: use {_either(choices)}")
    return total // world_size


def _with_iterations(
    config: TrainConfig, num_envs: int, total_timesteps: int, world_size: int
) -> tuple[TrainConfig, list[str]]:
    num_steps = config.agent.num_steps_per_env
    per_iteration = world_size * num_envs * num_steps
    iterations, left_over = divmod(total_timesteps, per_iteration)
    if not iterations:
        raise UserError(
            f"--total-timesteps {total_timesteps}: is less than one iteration, which has ranks x envs x steps = "
            f"{world_size} x {num_envs} x {num_steps} = {per_iteration}; use {per_iteration} or more"
        )
    lines = []
    if left_over:
        lines.append(
            f"--total-timesteps {total_timesteps}: trains {iterations} iterations of {per_iteration:,} steps, "
            f"{total_timesteps - left_over:,} in all; the other {left_over:,} would not fill an iteration."
        )
    return dataclasses.replace(config, max_iterations=iterations), lines


def _either(choices: list[str]) -> str:
    """Choices as one says them: 1, 2 or 4."""
    return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
