"""Terms of new tasks with the goal hold, for a robot with a free joint or on slide joints."""

import torch

from mjlab_dist.env import Env


def drift(env: Env, joint: str) -> torch.Tensor:
    """Reward: speed of the base in m/s; (num_envs,).

    Args:
        env: The envs.
        joint: The robot's free joint, or the slide joint along which it moves.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, :3].norm(dim=1)
