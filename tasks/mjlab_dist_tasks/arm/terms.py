"""Terms of the arm tasks.

Rewards for distances are 1 - tanh(distance / scale), as in robosuite (Zhu et al. 2020, arXiv:2009.12293) and in Isaac
Lab's tasks for reaching and lifting (isaac-sim.github.io/IsaacLab). The rewards for lifting also have the stages of
those tasks: reach the cube, grasp it, lift it, and move it to the target.

MuJoCo computes the gripper's position only at the start of a substep, so rewards use a position that is 5 ms old. After
a reset, this position is from the previous episode. Observations therefore compute the position from the joints,
which is cheaper than MuJoCo's complete forward pass.
"""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.mdp.rotation import half_angle, multiply
from mjlab_dist.mdp.sensors import Contact

GRIPPER = "gripper"
"""The site between the fingertips."""


class Kinematics:
    """Forward kinematics of the gripper.

    All joints must be hinges about the z axes of their bodies. These axes must go through the bodies' origins.
    """

    def __init__(self, env: Env) -> None:
        """Compute the fixed transformations between the joints."""
        model = env.sim.model
        site = model.site(GRIPPER)
        chain = [int(site.bodyid[0])]
        while parent := int(model.body_parentid[chain[0]]):
            chain.insert(0, parent)
        links, addresses, between = [], [], torch.eye(4, dtype=torch.float64)
        for body in chain:
            between = between @ _transform(model.body_pos[body], model.body_quat[body])
            if model.body_jntnum[body]:
                links.append(between)
                addresses.append(int(model.jnt_qposadr[model.body_jntadr[body]]))
                between = torch.eye(4, dtype=torch.float64)
        self._links = torch.stack(links).float().to(env.device)
        self._point = (between @ _transform(site.pos, site.quat))[:, 3:].float().to(env.device)
        self._columns = Columns(addresses, env.device)

    def position(self, qpos: torch.Tensor) -> torch.Tensor:
        """Return the gripper's position in the world frame, in m, (num_envs, 3).

        Args:
            qpos: Positions of all joints, (num_envs, nq).
        """
        angle = self._columns.of(qpos).unsqueeze(2)
        cos, sin = torch.cos(angle), torch.sin(angle)
        x, y = self._links[..., 0], self._links[..., 1]
        rest = self._links[..., 2:].expand(len(qpos), -1, -1, -1)
        turned = torch.cat([torch.stack([cos * x + sin * y, cos * y - sin * x], dim=3), rest], dim=3)
        point = self._point.expand(len(qpos), -1, -1)
        for link in reversed(turned.unbind(dim=1)):
            point = link @ point
        return point[:, :3, 0]


class _GripperTerm(Term):
    """A term that uses the gripper's position."""

    def __init__(self, env: Env) -> None:
        site = env.sim.model.site(GRIPPER).id
        self._position = env.sim.view("site_xpos")[:, site]


class _CubeTerm(_GripperTerm):
    """A term that uses the positions of the gripper and of a cube."""

    def __init__(self, env: Env, cube: str) -> None:
        super().__init__(env)
        self._cube = env.sim.qpos[:, env.joints[cube].qpos][:, :3]


class GripperToCube(Term):
    """Observation: vector from the gripper to the cube in the world frame, in m; (num_envs, 3)."""

    def __init__(self, env: Env, cube: str) -> None:
        """Look up the arm and the cube.

        Args:
            env: The envs.
            cube: The cube's free joint.
        """
        self._gripper = Kinematics(env)
        self._cube = env.sim.qpos[:, env.joints[cube].qpos][:, :3]

    def __call__(self, env: Env) -> torch.Tensor:
        return self._cube - self._gripper.position(env.sim.qpos)


def cube_to_target(env: Env, cube: str, command: str) -> torch.Tensor:
    """Observation: vector from the cube to the target, in m; (num_envs, 3).

    Args:
        env: The envs.
        cube: The cube's free joint.
        command: Name of a pose command.
    """
    return env.command(command)[:, :3] - env.sim.qpos[:, env.joints[cube].qpos][:, :3]


class AtPosition(_GripperTerm):
    """Reward: 1 if the gripper is at the position of a pose command, 0.24 at a distance of scale_m; (num_envs,)."""

    def __init__(self, env: Env, command: str, scale_m: float) -> None:
        """Look up the gripper.

        Args:
            env: The envs.
            command: Name of a pose command.
            scale_m: Distance in m at which the reward is 0.24.
        """
        super().__init__(env)
        self._command, self._scale_m = command, scale_m

    def __call__(self, env: Env) -> torch.Tensor:
        return closeness(self._position - env.command(self._command)[:, :3], self._scale_m)


class AtOrientation(Term):
    """Reward: 1 if the gripper has the orientation of a pose command, 0.24 at an angle of scale_rad; (num_envs,)."""

    def __init__(self, env: Env, command: str, scale_rad: float) -> None:
        """Look up the gripper.

        Args:
            env: The envs.
            command: Name of a pose command.
            scale_rad: Angle in rad at which the reward is 0.24.
        """
        site = env.sim.model.site(GRIPPER)
        self._quat = env.sim.view("xquat")[:, int(site.bodyid[0])]
        # The quaternion product is linear in its left factor, so a matrix maps the body's quaternion to the site's.
        self._to_site = multiply(torch.eye(4), torch.tensor(site.quat).float().expand(4, 4)).to(env.device)
        self._command, self._scale_rad = command, scale_rad

    def __call__(self, env: Env) -> torch.Tensor:
        target = env.command(self._command)[:, 3:]
        # The dot product of two unit quaternions is the cosine of half the angle between them.
        cosine = (target * (self._quat @ self._to_site)).sum(dim=1).abs_().clamp_(max=1.0)
        sine = (1.0 - cosine.square()).sqrt_()
        return 1.0 - torch.tanh(half_angle(sine, cosine).mul_(2.0 / self._scale_rad))


class AtCube(_CubeTerm):
    """Reward: 1 if the cube's center is between the fingertips, 0.24 at a distance of scale_m; (num_envs,)."""

    def __init__(self, env: Env, cube: str, scale_m: float) -> None:
        """Look up the cube.

        Args:
            env: The envs.
            cube: The cube's free joint.
            scale_m: Distance in m at which the reward is 0.24.
        """
        super().__init__(env, cube)
        self._scale_m = scale_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002
        return closeness(self._position - self._cube, self._scale_m)


class Grasp(_CubeTerm):
    """Reward: fraction of the finger pads in contact; 0 if the cube is not between the fingertips; (num_envs,)."""

    def __init__(self, env: Env, cube: str, sensor: str, max_m: float) -> None:
        """Look up the cube.

        Args:
            env: The envs.
            cube: The cube's free joint.
            sensor: Name of the contact sensor of both pads.
            max_m: Maximum distance in m between the cube's center and the point between the fingertips.
        """
        super().__init__(env, cube)
        self._pads, self._max_m = env.sensor(sensor, Contact), max_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002
        between = (self._position - self._cube).norm(dim=1) < self._max_m
        return between * self._pads.in_contact.float().mean(dim=1)


def height(env: Env, cube: str, low_m: float, high_m: float) -> torch.Tensor:
    """Reward: height of the cube's center, scaled and clipped to [0, 1]; (num_envs,).

    Args:
        env: The envs.
        cube: The cube's free joint.
        low_m: Maximum height in m at which the reward is 0.
        high_m: Minimum height in m at which the reward is 1.
    """
    z = env.sim.qpos[:, env.joints[cube].qpos][:, 2]
    return ((z - low_m) / (high_m - low_m)).clamp(0.0, 1.0)


def cube_at_target(env: Env, *, cube: str, command: str, scale_m: float, low_m: float, high_m: float) -> torch.Tensor:
    """Reward: closeness of the cube to the target, times :func:`height`; (num_envs,).

    The closeness is 1 at the target.

    Args:
        env: The envs.
        cube: The cube's free joint.
        command: Name of a pose command.
        scale_m: Distance in m at which the closeness is 0.24.
        low_m: Maximum height in m at which the reward is 0.
        high_m: Minimum height in m at which the reward equals the closeness.
    """
    return closeness(cube_to_target(env, cube, command), scale_m) * height(env, cube, low_m, high_m)


def is_at_target(env: Env, cube: str, command: str, max_m: float) -> torch.Tensor:
    """Metric: the cube is at the target; (num_envs,) of bool.

    Args:
        env: The envs.
        cube: The cube's free joint.
        command: Name of a pose command.
        max_m: Maximum distance in m between the cube's center and the target.
    """
    return cube_to_target(env, cube, command).norm(dim=1) <= max_m


def off_table(env: Env, cube: str, x_m: tuple[float, float], y_m: tuple[float, float]) -> torch.Tensor:
    """Termination: the cube is outside the area of the table; (num_envs,) of bool.

    Args:
        env: The envs.
        cube: The cube's free joint.
        x_m: Range of x in the area, in m.
        y_m: Range of y in the area, in m.
    """
    x, y = env.sim.qpos[:, env.joints[cube].qpos][:, :2].unbind(dim=1)
    return (x < x_m[0]) | (x > x_m[1]) | (y < y_m[0]) | (y > y_m[1])


def closeness(vector: torch.Tensor, scale: float) -> torch.Tensor:
    """Return 1 - tanh(length / scale) of each vector in a tensor (num_envs, 3); (num_envs,)."""
    return 1.0 - torch.tanh(vector.norm(dim=1) / scale)


def _transform(position: np.ndarray, quat: np.ndarray) -> torch.Tensor:
    """Return the homogeneous transformation matrix, (4, 4), of a position and a unit quaternion."""
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, quat)
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation.reshape(3, 3), position
    return torch.from_numpy(matrix)
