"""Whole episodes: the first episode of every env, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from tensordict import TensorDict

from mjlab_dist.env.env import Env

# Number of control steps between two checks of whether all episodes have ended; each check waits for the GPU
CHECK_INTERVAL = 32


class Policy(Protocol):
    """A policy, such as rsl_rl's models."""

    def __call__(self, obs: TensorDict, /) -> torch.Tensor:
        """Return actions, (num_envs, num_actions)."""
        ...


def episode_columns(env: Env) -> list[str]:
    """Return the names of the values that :func:`play_episodes` returns."""
    return ["return", "length", *(f"reward/{name}" for name in env.reward_names), *env.episode_outcomes()]


def play_episodes(
    env: Env, policy: Policy, ended: Callable[[torch.Tensor], None], alive: Callable[[], None]
) -> torch.Tensor:
    """Reset all envs, and play one episode in each.

    Args:
        ended: Called after every step with the envs whose episode ended in this step, (num_envs,) of bool. This
            includes the ends of second and later episodes.

    Returns:
        Values of :func:`episode_columns`, (num_columns, num_envs) of float64 on the CPU: return and length in control
        steps; for each reward term, its part of the return; for each reason, whether it ended the episode; metrics.
    """
    names = episode_columns(env)
    num_sums = 2 + len(env.reward_names)
    values = torch.zeros(len(names), env.num_envs, device=env.device)
    playing = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    one = torch.ones(1, env.num_envs, device=env.device)
    step = 0
    with torch.inference_mode():
        obs = env.reset()
        while step % CHECK_INTERVAL or playing.any():
            if step % CHECK_INTERVAL == 0:
                alive()
            obs, rewards, dones, _ = env.step(policy(obs))
            ended(dones)
            # Sums of return, length and reward terms; then outcomes, which cover all steps so far
            values[:num_sums] += playing * torch.cat([rewards.unsqueeze(0), one, env.reward_terms()])
            outcomes = torch.stack(list(env.episode_outcomes().values()))
            values[num_sums:] = torch.where(playing, outcomes, values[num_sums:])
            playing &= ~dones
            step += 1
    return values.double().cpu()
