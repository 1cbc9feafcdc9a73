"""Terms that test_env.py names in its configs."""

from __future__ import annotations

import torch

from mjlab_dist.env import Env

not_callable = 3


def position(env: Env) -> torch.Tensor:
    """Reward: the first coordinate of every env."""
    return env.sim.qpos[:, 0]


def alive(env: Env) -> torch.Tensor:
    """Reward: 1 in every env."""
    return torch.ones(env.num_envs, device=env.device)


def effort(env: Env) -> torch.Tensor:
    """Reward: the sum of the squared actions."""
    return env.actions.square().sum(dim=1)


def far(env: Env, limit: float) -> torch.Tensor:
    """Termination: the first coordinate is further than a limit from 0."""
    return env.sim.qpos[:, 0].abs() > limit


def fast(env: Env, limit: float) -> torch.Tensor:
    """Termination: the first velocity is beyond a limit."""
    return env.sim.qvel[:, 0].abs() > limit


def own_id(env: Env) -> torch.Tensor:
    """Observation: which env of the whole run this is; (num_envs, 1)."""
    return env.env_ids.unsqueeze(1).float()


def geom_position(env: Env, geom: int) -> torch.Tensor:
    """Observation: where a geom is, which only forward computes; (num_envs, 3)."""
    return env.sim.view("geom_xpos")[:, geom]


def root(env: Env) -> torch.Tensor:
    """Observation, of a user's mistake: the square root of the first coordinate, NaN where that is negative; (num_envs, 1)."""
    return env.sim.qpos[:, :1].sqrt()


def inverse(env: Env, limit: float) -> torch.Tensor:
    """Reward, of a user's mistake: one over how far the first coordinate is below a limit, infinite beyond it."""
    return 1.0 / (limit - env.sim.qpos[:, 0]).clamp_min(0.0)
