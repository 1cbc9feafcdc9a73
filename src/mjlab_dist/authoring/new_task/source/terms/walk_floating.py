"""Terms of new tasks with the goal walk, for a robot with a free joint."""

import torch

from mjlab_dist.env import Env
from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, max_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: velocity along the robot's x axis divided by max_m_s, clipped to [-1, 1]; (num_envs,).

    Args:
        env: The envs.
        max_m_s: Velocity in m/s at which the reward is 1.
        joint: The robot's free joint.
    """
    return base_linear_velocity(env, joint)[:, 0].clamp(-max_m_s, max_m_s) / max_m_s
