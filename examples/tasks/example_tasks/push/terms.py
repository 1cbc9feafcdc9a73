"""Terms of the pushing task."""

from __future__ import annotations

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows

BOX = "box/root"
"""The free joint of the box."""


def _box(env: Env) -> torch.Tensor:
    """Return the box's position on the table, in m, (num_envs, 2)."""
    return env.sim.qpos[:, env.joints[BOX].qpos][:, :2]


def _pusher(env: Env) -> torch.Tensor:
    """Return the pusher's position on the table, in m, (num_envs, 2)."""
    return env.sim.qpos[:, :2]


def box_to_goal(env: Env, command: str) -> torch.Tensor:
    """Return the vector from the box to the goal, in m; (num_envs, 2)."""
    return env.command(command)[:, :2] - _box(env)


def pusher_to_box(env: Env) -> torch.Tensor:
    """Return the vector from the pusher to the box, in m; (num_envs, 2)."""
    return _box(env) - _pusher(env)


def box_angle(env: Env) -> torch.Tensor:
    """Return sine and cosine of 4 times the box's yaw; (num_envs, 2).

    The factor is 4, because the box looks the same after a quarter turn.
    """
    w, _, _, z = env.sim.qpos[:, env.joints[BOX].qpos][:, 3:].unbind(dim=1)
    yaw = 8.0 * torch.atan2(z, w)
    return torch.stack([yaw.sin(), yaw.cos()], dim=1)


def at_goal(env: Env, command: str, scale_m: float) -> torch.Tensor:
    """Reward: 1 - tanh(d / scale_m), where d is the distance between the box and the goal; (num_envs,)."""
    return 1.0 - torch.tanh(box_to_goal(env, command).norm(dim=1) / scale_m)


def behind_box(env: Env, command: str, scale_m: float, distance_m: float = 0.09) -> torch.Tensor:
    """Reward: 1 - tanh(d / scale_m), where d is the distance of the pusher from a point behind the box; (num_envs,).

    From this point, which is distance_m behind the center of the box, the pusher can push the box to the goal. If the
    box is within 0.03 m of the goal, the reward is 1.
    """
    to_goal = box_to_goal(env, command)
    distance = to_goal.norm(dim=1, keepdim=True)
    behind = _box(env) - to_goal / distance.clamp_min(1e-6) * distance_m
    near = 1.0 - torch.tanh((_pusher(env) - behind).norm(dim=1) / scale_m)
    return torch.where(distance.squeeze(1) < 0.03, 1.0, near)


def is_at_goal(env: Env, command: str, max_m: float) -> torch.Tensor:
    """Return whether the box is within max_m of the goal; (num_envs,) of bool."""
    return box_to_goal(env, command).norm(dim=1) <= max_m


def off_table(env: Env, max_m: float) -> torch.Tensor:
    """Termination: the box is further than max_m from the middle of the table along x or y; (num_envs,) of bool."""
    return _box(env).abs().amax(dim=1) > max_m


def place_pusher(env: Env, mask: torch.Tensor, reach_m: float, min_m: float) -> None:
    """Event: place the pusher at random, within reach_m of the middle of the table along x and along y.

    If this place is closer than min_m to the box, the pusher is moved straight away from the box to a distance of
    min_m.
    """
    drawn = (2.0 * torch.rand(env.num_envs, 2, device=env.device) - 1.0) * reach_m
    away = drawn - _box(env)
    distance = away.norm(dim=1, keepdim=True).clamp_min(1e-6)
    moved = _box(env) + away / distance * distance.clamp_min(min_m)
    write_rows(_pusher(env), mask, moved)
