"""The budget of a run: envs per rank, and iterations. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate_rollout
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Number of envs per rank, and of iterations."""

    num_envs: int
    """Envs per rank."""
    max_iterations: int
    """Iterations to train, from the first one on."""
    note: str | None = None
    """Line for the user where ``--total-timesteps`` was rounded down."""


def plan_budget(config: TrainConfig, world_size: int) -> Budget | None:
    """Return the envs per rank and the iterations that a config asks for.

    Totals over all ranks win over numbers per rank. They stay in the config, so that the same file works on any number of ranks.

    Args:
        config: A config that :func:`mjlab_dist.config.checks.validate` has passed.
        world_size: Number of ranks, over all machines.

    Returns:
        The budget; None for ``--num-envs auto``, where ranks measure first and then call :func:`budget_of`.

    Raises:
        UserError: If the ranks cannot share the envs or the parameters, or the steps are fewer than one iteration has.
    """
    _check_sharding(config.fsdp_devices, world_size)
    if config.total_num_envs is not None:
        return budget_of(config, world_size, _envs_per_rank(config.total_num_envs, world_size))
    return None if config.num_envs == "auto" else budget_of(config, world_size, config.num_envs)


def budget_of(config: TrainConfig, world_size: int, num_envs: int) -> Budget:
    """Return the budget of a run whose envs per rank are known.

    Args:
        config: As for :func:`plan_budget`.
        world_size: Number of ranks, over all machines.
        num_envs: Envs per rank.

    Raises:
        UserError: If the rollout does not divide into mini-batches, or the steps are fewer than one iteration has.
    """
    validate_rollout(config.agent, num_envs)
    if config.total_timesteps is None:
        return Budget(num_envs=num_envs, max_iterations=config.max_iterations)
    num_steps = config.agent.num_steps_per_env
    per_iteration = world_size * num_envs * num_steps
    iterations, left_over = divmod(config.total_timesteps, per_iteration)
    if not iterations:
        raise UserError(
            f"--total-timesteps {config.total_timesteps}: is less than one iteration, which has ranks x envs x steps = "
            f"{world_size} x {num_envs} x {num_steps} = {per_iteration}; use {per_iteration} or more"
        )
    note = (
        f"--total-timesteps {config.total_timesteps}: trains {iterations} iterations of {per_iteration:,} steps, "
        f"{config.total_timesteps - left_over:,} in all; the other {left_over:,} would not fill an iteration."
    )
    return Budget(num_envs=num_envs, max_iterations=iterations, note=note if left_over else None)


def _check_sharding(fsdp_devices: int, world_size: int) -> None:
    if world_size % fsdp_devices:
        divisors = [n for n in range(1, world_size + 1) if world_size % n == 0]
        ranks = "1 rank" if world_size == 1 else f"{world_size} ranks"
        raise UserError(
            f"--fsdp-devices {fsdp_devices}: does not divide the run's {ranks}; use {listed(divisors, 'or')}"
        )


def _envs_per_rank(total: int, world_size: int) -> int:
    if total % world_size:
        below = total // world_size * world_size
        choices = [n for n in (below, below + world_size) if n]
        raise UserError(f"--total-num-envs {total} can't be split over {world_size} ranks: use {listed(choices, 'or')}")
    return total // world_size
