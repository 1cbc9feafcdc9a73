"""Budget of a run: number of envs per rank, number of iterations. Imports the standard library only."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from mjlab_dist.config import AgentConfig, PpoConfig, SacConfig, TrainConfig
from mjlab_dist.config.checks import validate, validate_shards
from mjlab_dist.errors import UserError

# Largest ratio by which the envs of a rank are rounded up for its mini-batches
MAX_ROUNDING = 1.25


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Number of envs per rank, and number of iterations."""

    # Number of envs per rank
    num_envs: int
    # Total number of iterations, including those before a resume
    max_iterations: int
    # Lines for the user about totals that were rounded
    notes: tuple[str, ...] = ()


def validate_training(config: TrainConfig) -> None:
    """Raise if a config is invalid, or if its rollouts do not divide into mini-batches.

    If the number of envs per rank depends on the devices, :func:`plan_budget` checks the rollouts.
    """
    validate(config)
    if config.total_num_envs is None and config.num_envs != "auto":
        _validate_rollout(config.agent, config.num_envs)


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
    # --total-num-envs, rounded up so that ranks have equal numbers of envs, and mini-batches of samples. Mini-batches
    # that need many more envs are refused.
    least, unit = math.ceil(config.total_num_envs / world_size), _envs_per_mini_batch(config.agent)
    num_envs = unit * math.ceil(least / unit)
    budget = budget_of(config, world_size, num_envs if num_envs <= MAX_ROUNDING * least else least)
    if (total := budget.num_envs * world_size) == config.total_num_envs:
        return budget
    note = f"--total-num-envs {config.total_num_envs}: trains with {total}, {num_envs} on each rank, so that ranks and"
    return dataclasses.replace(budget, notes=(f"{note} mini-batches have equal shares.", *budget.notes))


def total_num_envs(config: TrainConfig, world_size: int) -> int:
    """Return the number of envs of all ranks; raise for ``--num-envs auto``, which only training supports."""
    if config.total_num_envs is not None:
        return config.total_num_envs
    if config.num_envs == "auto":
        raise UserError("--num-envs auto: works only for training; give a number")
    return config.num_envs * world_size


def budget_of(config: TrainConfig, world_size: int, num_envs: int) -> Budget:
    """Return the budget of a run with a known number of envs per rank."""
    _validate_rollout(config.agent, num_envs)
    _validate_replay(config.agent, world_size, num_envs)
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
    return Budget(num_envs=num_envs, max_iterations=iterations, notes=(note,) if left_over else ())


def _validate_rollout(agent: AgentConfig, num_envs: int) -> None:
    """Raise if the rollout of one rank does not divide into mini-batches."""
    if num_envs % _envs_per_mini_batch(agent) == 0:
        return
    assert isinstance(agent, PpoConfig)
    text = f"--agent.num-mini-batches {agent.num_mini_batches}: does not divide"
    if agent.rnn != "none":
        raise UserError(
            f"{text} --num-envs {num_envs}; with --agent.rnn {agent.rnn}, the envs are divided among the mini-batches; "
            f"use {_nearest_divisor(num_envs, agent.num_mini_batches)}"
        )
    rollout = num_envs * agent.num_steps_per_env
    raise UserError(
        f"{text} the rollout of --num-envs {num_envs} x --agent.num-steps-per-env {agent.num_steps_per_env} = "
        f"{rollout} samples; use {_nearest_divisor(rollout, agent.num_mini_batches)}"
    )


def _envs_per_mini_batch(agent: AgentConfig) -> int:
    """Return the number whose multiples are the numbers of envs that divide into mini-batches."""
    if isinstance(agent, SacConfig):
        return 1
    if agent.rnn != "none":
        return agent.num_mini_batches
    return agent.num_mini_batches // math.gcd(agent.num_mini_batches, agent.num_steps_per_env)


def _validate_replay(agent: AgentConfig, world_size: int, num_envs: int) -> None:
    """Raise if SAC's batches cannot be split over the ranks, or if its replay is too small for a batch."""
    if not isinstance(agent, SacConfig):
        return
    if agent.batch_size % world_size:
        size = max(1, agent.batch_size // world_size) * world_size
        raise UserError(
            f"--agent.batch-size {agent.batch_size}: cannot be split evenly over {world_size} ranks; use {size}"
        )
    least = max(agent.num_steps_per_env, agent.warmup_steps, agent.n_step) * num_envs * world_size
    if agent.replay_size < least:
        raise UserError(
            f"--agent.replay-size {agent.replay_size}: is less than the {least} transitions before the first gradient "
            "step; raise it, or lower --agent.warmup-steps, --agent.num-steps-per-env or the number of envs"
        )


def _nearest_divisor(number: int, wish: int) -> int:
    divisors = [n for n in range(1, min(number, 64) + 1) if number % n == 0]
    return min(divisors, key=lambda n: abs(n - wish))
