"""Terms of new tasks with the goal hold, for a robot on slide joints."""

import torch

from mjlab_dist.env import Env


def drift(env: Env, joint: str) -> torch.Tensor:
    """Reward: speed of a slide joint in m/s; (num_envs,).

    Args:
        env: The envs.
        joint: The slide joint along which the robot moves.
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 0].abs()
