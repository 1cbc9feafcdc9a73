"""Budget of a run: number of envs per rank, number of iterations. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate_rollout
from mjlab_dist.config.fsdp import validate_shards
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Number of envs per rank, and number of iterations."""

    # Number of envs per rank
    num_envs: int
    # Total number of iterations, including those before a resume
    max_iterations: int
    # Line for the user if --total-timesteps was rounded down
    note: str | None = None


def plan_budget(config: TrainConfig, world_size: int) -> Budget | None:
    """Return the number of envs per rank and the number of iterations for a config.

    Totals over all ranks take precedence over numbers per rank. The totals stay in the config, so that the same config
    file works with any number of ranks.

    Returns:
        The budget; None for ``--num-envs auto``, where ranks first measure memory and then call :func:`budget_of`.
    """
    validate_shards(config, world_size)
    if config.total_num_envs is None:
        return None if config.num_envs == "auto" else budget_of(config, world_size, config.num_envs)
    num_envs, left_over = divmod(config.total_num_envs, world_size)
    if left_over:
        choices = [n for n in (num_envs * world_size, (num_envs + 1) * world_size) if n]
        raise UserError(
            f"--total-num-envs {config.total_num_envs}: cannot be split evenly over {world_size} ranks; use "
            + listed(choices, "or")
        )
    return budget_of(config, world_size, num_envs)


def budget_of(config: TrainConfig, world_size: int, num_envs: int) -> Budget:
    """Return the budget of a run with a known number of envs per rank."""
    validate_rollout(config.agent, num_envs)
    if config.total_timesteps is None:
        return Budget(num_envs=num_envs, max_iterations=config.max_iterations)
    # --total-timesteps, rounded down to whole iterations
    num_steps = config.agent.num_steps_per_env
    per_iteration = world_size * num_envs * num_steps
    iterations, left_over = divmod(config.total_timesteps, per_iteration)
    if not iterations:
        raise UserError(
            f"--total-timesteps {config.total_timesteps}: one iteration has more steps: ranks x envs per rank x steps "
            f"per rollout = {world_size} x {num_envs} x {num_steps} = {per_iteration}; use {per_iteration} or more"
        )
    note = (
        f"--total-timesteps {config.total_timesteps}: trains {iterations} iterations of {per_iteration:,} steps, "
        f"{config.total_timesteps - left_over:,} in all; the remaining {left_over:,} are less than one iteration."
    )
    return Budget(num_envs=num_envs, max_iterations=iterations, note=note if left_over else None)
