"""Terms that any task can use: pure functions of the env, over all envs at once."""

from __future__ import annotations

import torch

from mjlab_dist.env.env import Env, StartState


def joint_position(env: Env, joint: str) -> torch.Tensor:
    """Observation: a joint's position, in m or rad; (num_envs, 1) for a slide or hinge."""
    return env.sim.qpos[:, env.joints[joint].qpos]


def joint_velocity(env: Env, joint: str) -> torch.Tensor:
    """Observation: a joint's velocity, in m/s or rad/s; (num_envs, 1) for a slide or hinge."""
    return env.sim.qvel[:, env.joints[joint].qvel]


def draw_joint_position(env: Env, start: StartState, joint: str, low: float, high: float) -> StartState:
    """Event: put a slide or hinge joint anywhere in [low, high], in m or rad."""
    column = env.joints[joint].qpos
    qpos = start.qpos.clone()
    qpos[:, column] = torch.rand_like(qpos[:, column]) * (high - low) + low
    return start._replace(qpos=qpos)


def draw_velocities(env: Env, start: StartState, std: float) -> StartState:  # noqa: ARG001 (every event takes the env)
    """Event: draw all joint velocities from a normal distribution around 0, with std in m/s and rad/s."""
    return start._replace(qvel=std * torch.randn_like(start.qvel))
