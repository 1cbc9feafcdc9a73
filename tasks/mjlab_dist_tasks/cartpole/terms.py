"""Terms of the cartpole tasks; rewards as the DeepMind Control Suite's cartpole and its ``rewards.tolerance``."""

from __future__ import annotations

import math

import torch

from mjlab_dist.env import Env

_GAUSSIAN = -math.log(0.1)
"""``rewards.tolerance`` is 0.1 at its margin by default: exp(-_GAUSSIAN) there."""


def pole_direction(env: Env) -> torch.Tensor:
    """Observation: cosine and sine of the pole's angle from upright, (num_envs, 2)."""
    angle = env.sim.qpos[:, env.joints["hinge"].qpos]
    return torch.cat([torch.cos(angle), torch.sin(angle)], dim=-1)


def draw_around(env: Env, mask: torch.Tensor, joint: str, mean: float, std: float) -> None:
    """Event: draw a joint's position from a normal distribution, in m or rad."""
    column = env.sim.qpos[:, env.joints[joint].qpos]
    column.copy_(torch.where(mask.unsqueeze(1), mean + std * torch.randn_like(column), column))


def upright(env: Env) -> torch.Tensor:
    """Reward: 1 with the pole upright, 0 hanging; (num_envs,)."""
    return 0.5 + 0.5 * torch.cos(env.sim.qpos[:, env.joints["hinge"].qpos]).squeeze(1)


def centered(env: Env, margin: float = 2.0) -> torch.Tensor:
    """Reward: 1 with the cart in the middle, 0.55 at ``margin`` metres from it; (num_envs,)."""
    return 0.5 + 0.5 * _tolerance(env.sim.qpos[:, env.joints["slider"].qpos].squeeze(1), margin)


def small_control(env: Env) -> torch.Tensor:
    """Reward: 1 without force, 0.8 at the actuator's limit and beyond; (num_envs,)."""
    return 0.8 + 0.2 * (1.0 - env.actions.square()).clamp_min(0.0).squeeze(1)


def small_velocity(env: Env, margin: float = 5.0) -> torch.Tensor:
    """Reward: 1 with the pole at rest, 0.55 at ``margin`` rad/s; (num_envs,)."""
    return 0.5 + 0.5 * _tolerance(env.sim.qvel[:, env.joints["hinge"].qvel].squeeze(1), margin)


def smooth(env: Env) -> torch.Tensor:
    """Reward: the suite's smooth cartpole reward, the product of the four above; (num_envs,), between 0 and 1."""
    return upright(env) * small_control(env) * small_velocity(env) * centered(env)


def _tolerance(x: torch.Tensor, margin: float) -> torch.Tensor:
    return torch.exp(-_GAUSSIAN / margin**2 * x.square())
