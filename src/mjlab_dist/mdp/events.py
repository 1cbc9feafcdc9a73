"""Event terms: start states and pushes. Each changes the state of the masked envs in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.env.columns import uniform, write_rows
from mjlab_dist.env.term import Term
from mjlab_dist.mdp import kernels

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env

Range = tuple[float, float]


def draw_joint_position(env: Env, mask: torch.Tensor, joint: str, low: float, high: float) -> None:
    """Sample the position of a slide or hinge joint uniformly from [low, high], in m or rad."""
    column = env.sim.qpos[:, env.joints[joint].qpos]
    write_rows(column, mask, uniform(column, low, high))


def draw_velocities(env: Env, mask: torch.Tensor, std: float) -> None:
    """Sample all joint velocities from a normal distribution with mean 0; std is in m/s and rad/s."""
    write_rows(env.sim.qvel, mask, torch.randn_like(env.sim.qvel).mul_(std))


class DrawJoints(Term):
    """Randomize hinge and slide joints uniformly around the start state, within the joints' limits."""

    def __init__(
        self,
        env: Env,
        joints: tuple[str, ...] = (".*",),
        position: Range = (0.0, 0.0),
        velocity: Range = (0.0, 0.0),
        entity: str | None = None,
    ) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            joints: Regular expressions that match the joints' names.
            position: Range of the offset added to each position, in rad or m.
            velocity: Range of each velocity, in rad/s or m/s.
            entity: Entity of the joints.
        """
        self._joints = env.find_joints(joints, entity)
        self._position, self._velocity = position, velocity

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        qpos, qvel = self._joints.qpos, self._joints.qvel
        position = qpos.of(env.sim.qpos)
        moved = uniform(position, *self._position).add_(position)
        qpos.write(env.sim.qpos, mask, moved.clamp_(self._joints.lower, self._joints.upper))
        qvel.write(env.sim.qvel, mask, uniform(qvel.of(env.sim.qvel), *self._velocity))


class DrawRoot(Term):
    """Randomize the pose of a floating base around its start pose at the env's origin, and sample its velocity."""

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
            x_m: Range of the offset added to x.
            y_m: Range of the offset added to y.
            z_m: Range of the offset added to z.
            roll_rad: Range of the rotation about the world's x axis, which is applied first.
            pitch_rad: Range of the rotation about the world's y axis, applied second.
            yaw_rad: Range of the rotation about the world's z axis, applied last.
            linear_m_s: Range of each component of the linear velocity, in the world frame.
            angular_rad_s: Range of each component of the angular velocity, in the base's frame.
            joint: The body's free joint.
        """
        env.base(joint)  # raises if the joint is not a free joint
        qpos, qvel = env.joints[joint]
        ranges = [x_m, y_m, z_m, roll_rad, pitch_rad, yaw_rad, *[linear_m_s] * 3, *[angular_rad_s] * 3]
        self._mask = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self._drawn = torch.zeros(env.num_envs, len(ranges), device=env.device)
        home, pose, velocity = env.reference.qpos[:, qpos], env.sim.qpos[:, qpos], env.sim.qvel[:, qvel]
        with wp.ScopedDevice(env.device):
            low, high = (wp.array(ends, dtype=float) for ends in zip(*ranges, strict=True))
        mask, drawn = wp.from_torch(self._mask), wp.from_torch(self._drawn)
        tensors: list[Any] = [wp.from_torch(tensor) for tensor in (home, env.origins, pose, velocity)]

        def draw(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (the signature of recorded programs)
            wp.launch(kernels.draw_root, env.num_envs, [mask, drawn, low, high, *tensors])

        self._draw = env.sim.record(draw)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every event takes the env)
        self._mask.copy_(mask)
        self._drawn.uniform_()
        self._draw()


class Push(Term):
    """Push a floating base: add a random velocity to its current one."""

    def __init__(
        self, env: Env, linear_m_s: Range = (-0.5, 0.5), angular_rad_s: Range = (0.0, 0.0), joint: str = "root"
    ) -> None:
        """Look up the joint.

        Args:
            env: The envs.
            linear_m_s: Range of the velocity added along the world's x axis and along its y axis.
            angular_rad_s: Range of the angular velocity added about each axis.
            joint: The body's free joint.
        """
        self._qvel = env.joints[joint].qvel
        ranges = [linear_m_s, linear_m_s, (0.0, 0.0), *[angular_rad_s] * 3]
        self._low, high = torch.tensor(ranges, device=env.device).unbind(dim=1)
        self._width = high - self._low

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        velocity = env.sim.qvel[:, self._qvel]
        drawn = torch.addcmul(self._low, torch.rand_like(velocity), self._width)
        velocity.add_(drawn.mul_(mask.unsqueeze(1)))
