"""What happens to envs: start states and pushes. Each changes the envs of a mask, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.rotation import from_euler, multiply
from mjlab_dist.env.term import Term

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

Range = tuple[float, float]


def draw_joint_position(env: Env, mask: torch.Tensor, joint: str, low: float, high: float) -> None:
    """Put a slide or hinge joint anywhere in [low, high], in m or rad."""
    column = env.sim.qpos[:, env.joints[joint].qpos]
    drawn = torch.rand_like(column) * (high - low) + low
    column.copy_(torch.where(mask.unsqueeze(1), drawn, column))


def draw_velocities(env: Env, mask: torch.Tensor, std: float) -> None:
    """Draw all joint velocities from a normal distribution around 0, with std in m/s and rad/s."""
    env.sim.qvel.copy_(torch.where(mask.unsqueeze(1), std * torch.randn_like(env.sim.qvel), env.sim.qvel))


class DrawJoints(Term):
    """Move hinge and slide joints away from the start state, uniformly, but not past their limits."""

    def __init__(
        self,
        env: Env,
        joints: tuple[str, ...] = (".*",),
        position: Range = (0.0, 0.0),
        velocity: Range = (0.0, 0.0),
    ) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            joints: Regular expressions of their names.
            position: Range added to each position, in rad or m.
            velocity: Range of each velocity, in rad/s or m/s.
        """
        self._joints = env.find_joints(joints)
        self._position, self._velocity = position, velocity

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        """Draw."""
        qpos, qvel = self._joints.qpos, self._joints.qvel
        position = qpos.of(env.sim.qpos)
        moved = position + _uniform(position, self._position)
        qpos.write(env.sim.qpos, mask, torch.maximum(torch.minimum(moved, self._joints.upper), self._joints.lower))
        qvel.write(env.sim.qvel, mask, _uniform(qvel.of(env.sim.qvel), self._velocity))


class DrawRoot(Term):
    """Put a free-floating body anywhere around its start pose and its env's origin, turned and moving."""

    def __init__(
        self,
        env: Env,
        *,
        x_m: Range = (0.0, 0.0),
        y_m: Range = (0.0, 0.0),
        z_m: Range = (0.0, 0.0),
        roll_rad: Range = (0.0, 0.0),
        pitch_rad: Range = (0.0, 0.0),
        yaw_rad: Range = (0.0, 0.0),
        linear_m_s: Range = (0.0, 0.0),
        angular_rad_s: Range = (0.0, 0.0),
        joint: str = "root",
    ) -> None:
        """Look up the joint.

        Args:
            env: The envs.
            x_m: Range added to x.
            y_m: Range added to y.
            z_m: Range added to z.
            roll_rad: Range of the turn about the world's x, the first of three.
            pitch_rad: Range of the turn about the world's y.
            yaw_rad: Range of the turn about the world's z.
            linear_m_s: Range of each part of the linear velocity.
            angular_rad_s: Range of each part of the angular velocity.
            joint: The body's free joint.
        """
        self._qpos, self._qvel = env.joints[joint]
        ranges = [x_m, y_m, z_m, roll_rad, pitch_rad, yaw_rad, *[linear_m_s] * 3, *[angular_rad_s] * 3]
        self._low, self._high = torch.tensor(ranges, device=env.device).unbind(dim=1)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        """Draw."""
        drawn = torch.rand(env.num_envs, 12, device=env.device) * (self._high - self._low) + self._low
        home = env.reference.qpos[:, self._qpos]
        position = home[:, :3] + env.origins + drawn[:, :3]
        orientation = multiply(from_euler(*drawn[:, 3:6].unbind(dim=1)), home[:, 3:])
        chosen = mask.unsqueeze(1)
        for where, column, values in (
            (env.sim.qpos, self._qpos, torch.cat([position, orientation], dim=1)),
            (env.sim.qvel, self._qvel, drawn[:, 6:]),
        ):
            where[:, column] = torch.where(chosen, values, where[:, column])


class Push(Term):
    """Change a free-floating body's velocity at once, as a shove would."""

    def __init__(
        self, env: Env, linear_m_s: Range = (-0.5, 0.5), angular_rad_s: Range = (0.0, 0.0), joint: str = "root"
    ) -> None:
        """Look up the joint.

        Args:
            env: The envs.
            linear_m_s: Range added to the velocity along x and along y of the world.
            angular_rad_s: Range added to each part of the angular velocity.
            joint: The body's free joint.
        """
        self._qvel = env.joints[joint].qvel
        ranges = [linear_m_s, linear_m_s, (0.0, 0.0), *[angular_rad_s] * 3]
        self._low, self._high = torch.tensor(ranges, device=env.device).unbind(dim=1)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        """Push."""
        velocity = env.sim.qvel[:, self._qvel]
        drawn = torch.rand_like(velocity) * (self._high - self._low) + self._low
        velocity.add_(drawn * mask.unsqueeze(1))


def _uniform(like: torch.Tensor, bounds: Range) -> torch.Tensor:
    return torch.rand_like(like) * (bounds[1] - bounds[0]) + bounds[0]
