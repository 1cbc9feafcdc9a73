"""Terms of new tasks with the goal walk, for a robot on slide joints."""

import torch

from mjlab_dist.env import Env


def forward_speed(env: Env, max_m_s: float, joint: str) -> torch.Tensor:
    """Reward: velocity of a slide joint divided by max_m_s, clipped to [-1, 1]; (num_envs,).

    Args:
        env: The envs.
        max_m_s: Velocity in m/s at which the reward is 1.
        joint: The slide joint along which the robot moves.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 0].clamp(-max_m_s, max_m_s) / max_m_s
