"""Terms of the task template: each works on all copies of the robot at once, on the device.

Each row of a tensor is a copy of the robot. Nothing here may wait for the device: no .item(), .cpu(), print or if on a
tensor's numbers, and no mask as an index; use torch.where.
"""

import torch

from mjlab_dist.env import Env
from mjlab_dist.mdp.observations import base_linear_velocity


def forward_speed(env: Env, max_m_s: float, joint: str = "root") -> torch.Tensor:
    """Reward: the robot's speed along its own x axis divided by max_m_s, between -1 and 1; (num_envs,)."""
    return base_linear_velocity(env, joint)[:, 0].clamp(-max_m_s, max_m_s) / max_m_s
