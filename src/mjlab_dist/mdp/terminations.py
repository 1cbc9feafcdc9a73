"""Termination terms: each returns (num_envs,) of bool. The env itself ends episodes at the time limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import cos
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.observations import base_height, projected_gravity
from mjlab_dist.mdp.sensors import Contact

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def tilted(env: Env, max_rad: float, joint: str = "root") -> torch.Tensor:
    """Return whether the angle between the base's z axis and the vertical exceeds max_rad."""
    return projected_gravity(env, joint)[:, 2] > -cos(max_rad)


def too_low(env: Env, min_m: float, joint: str = "root") -> torch.Tensor:
    """Return whether the base is less than min_m above its env's origin."""
    return base_height(env, joint).squeeze(1) < min_m


def out_of_bounds(env: Env, max_m: float, joint: str = "root") -> torch.Tensor:
    """Return whether the horizontal distance from the env's origin to the base exceeds max_m."""
    position = env.sim.qpos[:, env.joints[joint].qpos][:, :2]
    return (position - env.origins[:, :2]).norm(dim=1) > max_m


def left_tile(env: Env, joint: str = "root") -> torch.Tensor:
    """Return whether the base is farther from the middle of its terrain tile than half the tile's side."""
    if env.terrain is None:
        raise UserError("left_tile: the task has no terrain; add parts to --env.sim.terrain, or remove the termination")
    return out_of_bounds(env, 0.5 * env.terrain.config.tile_size_m, joint)


def joint_out_of_range(env: Env, joint: str, low: float = -math.inf, high: float = math.inf) -> torch.Tensor:
    """Return whether the position of a hinge (in rad) or slide joint (in m) is below low or above high."""
    position = env.sim.qpos[:, env.joints[joint].qpos].squeeze(1)
    return (position < low) | (position > high)


def illegal_contact(env: Env, sensor: str, min_n: float = 0.0) -> torch.Tensor:
    """Return whether a body of a contact sensor of ``env.sensors`` touches something with at least min_n N."""
    return env.sensor(sensor, Contact).touching(min_n).any(dim=1)


def not_finite(env: Env) -> torch.Tensor:
    """Return whether a joint position or velocity is not finite.

    To check observations and rewards, too, use ``env.nan_policy`` instead.
    """
    return ~(env.sim.qpos.isfinite().all(dim=1) & env.sim.qvel.isfinite().all(dim=1))
