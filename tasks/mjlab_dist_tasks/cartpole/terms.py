"""Terms of the cartpole tasks. The reward is that of the DeepMind Control Suite's cartpole."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict

from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows


def pole_direction(env: Env) -> torch.Tensor:
    """Observation: cosine and sine of the pole's angle from upright, (num_envs, 2)."""
    angle = env.sim.qpos[:, env.joints["hinge"].qpos]
    # Cosine and sine in one operation, as the parts of a complex number
    return torch.view_as_real(torch.polar(torch.ones_like(angle), angle)).squeeze(1)


def draw_around(env: Env, mask: torch.Tensor, joint: str, mean: float, std: float) -> None:
    """Event: sample a joint's position from a normal distribution.

    Args:
        env: The envs.
        mask: Envs in which an episode starts, (num_envs,) of bool.
        joint: Name of a slide or hinge joint.
        mean: Mean of the positions, in m or rad.
        std: Standard deviation of the positions, in m or rad.
    """
    column = env.sim.qpos[:, env.joints[joint].qpos]
    write_rows(column, mask, torch.empty_like(column).normal_(mean, std))


def with_mirrored(
    env: Env,  # noqa: ARG001
    obs: TensorDict | None,
    actions: torch.Tensor | None,
) -> tuple[TensorDict | None, torch.Tensor | None]:
    """For --agent.symmetry: append samples in which left and right are exchanged.

    Args:
        env: The envs.
        obs: Observations, (samples, ...) for each group; None for actions alone.
        actions: Actions, (samples, 1); None for observations alone.
    """
    if obs is not None:
        # The cosine of the angle is the same in the mirror; all other observations are the opposite.
        mirrored = -obs["actor"]
        mirrored[:, 1] = obs["actor"][:, 1]
        both = torch.cat([obs["actor"], mirrored])
        obs = TensorDict({"actor": both}, batch_size=[len(both)])
    return obs, None if actions is None else torch.cat([actions, -actions])


def small_control(env: Env, max_reward: float = 1.0) -> torch.Tensor:
    """Reward: max_reward at action 0, and 0.8 * max_reward at actions <= -1 and >= 1; (num_envs,).

    Args:
        env: The envs.
        max_reward: Reward at action 0.
    """
    effort = env.actions.squeeze(1).clamp(-1.0, 1.0).square_()
    return torch.rsub(effort, max_reward, alpha=0.2 * max_reward)


def smooth(env: Env) -> torch.Tensor:
    """Reward: the suite's smooth cartpole reward, between 0 and 1; (num_envs,).

    It is the product of four factors: (1 + cos angle) / 2 for the upright pole, (1 + tolerance) / 2 for the centered
    cart, (1 + tolerance) / 2 for the pole at rest, and :func:`small_control`.
    """
    position, angle = env.sim.qpos[:, env.joints["slider"].qpos], env.sim.qpos[:, env.joints["hinge"].qpos]
    velocity = env.sim.qvel[:, env.joints["hinge"].qvel]
    reward = small_control(env, max_reward=0.125)
    for part in (torch.cos(angle), _tolerance(velocity, margin=5.0), _tolerance(position, margin=2.0)):
        reward = torch.addcmul(reward, reward, part.squeeze(1))  # reward * (1 + part)
    return reward


def _tolerance(x: torch.Tensor, margin: float) -> torch.Tensor:
    """Return the suite's ``rewards.tolerance`` with its Gaussian: 1 at 0, and 0.1 at the margin."""
    return torch.exp(x.square() * (math.log(0.1) / margin**2))
