"""Terms of new tasks with the goal none."""

import torch

from mjlab_dist.env import Env


def your_function(env: Env) -> torch.Tensor:
    """Reward: an example, 1 in every step; (num_envs,)."""
    return torch.ones(env.num_envs, device=env.device)
