"""Terms of the arm tasks.

Distances are rewarded by 1 - tanh(distance / scale), as robosuite (Zhu et al. 2020, arXiv:2009.12293) and Isaac Lab's reaching and
lifting tasks (isaac-sim.github.io/IsaacLab) do; lifting is staged as there: towards the cube, grasp, up, to the target.

Rewards look at the gripper where MuJoCo last computed it, at the start of the last substep, 5 ms ago. Observations, which after a reset
would see it where the last episode ended, compute it from the joints: cheaper than all of MuJoCo's forward pass.
"""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.mdp.rotation import multiply
from mjlab_dist.mdp.sensors import Contact

GRIPPER = "gripper"
"""The site between the fingertips."""


class Kinematics:
    """Where the gripper is by the joints' positions, as MuJoCo would compute it.

    An arm's joints turn about the z axes of their bodies, through their origins.
    """

    def __init__(self, env: Env) -> None:
        """Collect what lies between the joints."""
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
        """Of the gripper in the world's frame, in m, (num_envs, 3).

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
    """A term that looks at the gripper."""

    def __init__(self, env: Env) -> None:
        site = env.sim.model.site(GRIPPER).id
        self._position = env.sim.view("site_xpos")[:, site]


class _CubeTerm(_GripperTerm):
    """A term that looks at the gripper and at a cube."""

    def __init__(self, env: Env, cube: str) -> None:
        super().__init__(env)
        self._cube = env.sim.qpos[:, env.joints[cube].qpos][:, :3]


class GripperToCube(Term):
    """Observation: vector from the gripper to the cube in the world's frame, in m; (num_envs, 3)."""

    def __init__(self, env: Env, cube: str) -> None:
        """Look up the arm and the cube, by its free joint."""
        self._gripper = Kinematics(env)
        self._cube = env.sim.qpos[:, env.joints[cube].qpos][:, :3]

    def __call__(self, env: Env) -> torch.Tensor:
        """Observe."""
        return self._cube - self._gripper.position(env.sim.qpos)


def cube_to_target(env: Env, cube: str, command: str) -> torch.Tensor:
    """Observation: vector from the cube (its free joint) to the target (a pose command), in m; (num_envs, 3)."""
    return env.command(command)[:, :3] - env.sim.qpos[:, env.joints[cube].qpos][:, :3]


class AtPosition(_GripperTerm):
    """Reward: 1 with the gripper at the position of a pose command, 0.24 a scale away from it; (num_envs,)."""

    def __init__(self, env: Env, command: str, scale_m: float) -> None:
        """Look up the gripper.

        Args:
            env: The envs.
            command: A pose command.
            scale_m: Distance that counts.
        """
        super().__init__(env)
        self._command, self._scale_m = command, scale_m

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        return closeness(self._position - env.command(self._command)[:, :3], self._scale_m)


class AtOrientation(Term):
    """Reward: 1 with the gripper turned as a pose command says, 0.24 where it is a scale off; (num_envs,)."""

    def __init__(self, env: Env, command: str, scale_rad: float) -> None:
        """Look up the gripper.

        Args:
            env: The envs.
            command: A pose command.
            scale_rad: Angle that counts.
        """
        site = env.sim.model.site(GRIPPER)
        self._quat = env.sim.view("xquat")[:, int(site.bodyid[0])]
        # From the body's orientation to the gripper's: a product with the site's quaternion is linear in the body's.
        self._to_site = multiply(torch.eye(4), torch.tensor(site.quat).float().expand(4, 4)).to(env.device)
        self._command, self._scale_rad = command, scale_rad

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        told = env.command(self._command)[:, 3:]
        # The product of two unit quaternions is the cosine of half the angle between them.
        cosine = (told * (self._quat @ self._to_site)).sum(dim=1).abs_()
        return 1.0 - torch.tanh(torch.acos(cosine.clamp_(max=1.0)).mul_(2.0 / self._scale_rad))


class AtCube(_CubeTerm):
    """Reward: 1 with the cube's middle between the fingertips, 0.24 a scale away from there; (num_envs,)."""

    def __init__(self, env: Env, cube: str, scale_m: float) -> None:
        """Look up the cube.

        Args:
            env: The envs.
            cube: Its free joint.
            scale_m: Distance that counts.
        """
        super().__init__(env, cube)
        self._scale_m = scale_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002
        """Reward."""
        return closeness(self._position - self._cube, self._scale_m)


class Grasp(_CubeTerm):
    """Reward: share of the fingers' pads that touch something, where the cube's middle is between them; (num_envs,)."""

    def __init__(self, env: Env, cube: str, sensor: str, most_m: float) -> None:
        """Look up the cube.

        Args:
            env: The envs.
            cube: Its free joint.
            sensor: A contact sensor of ``env.sensors``: both pads.
            most_m: Distance from between the fingertips up to which the cube is there.
        """
        super().__init__(env, cube)
        self._pads, self._most_m = env.sensor(sensor, Contact), most_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002
        """Reward."""
        between = (self._position - self._cube).norm(dim=1) < self._most_m
        return between * self._pads.in_contact.float().mean(dim=1)


def height(env: Env, cube: str, low_m: float, high_m: float) -> torch.Tensor:
    """Reward: 0 with the cube's middle (its free joint) at low_m over the table, rising to 1 at high_m; (num_envs,)."""
    z = env.sim.qpos[:, env.joints[cube].qpos][:, 2]
    return ((z - low_m) / (high_m - low_m)).clamp(0.0, 1.0)


def cube_at_target(env: Env, *, cube: str, command: str, scale_m: float, low_m: float, high_m: float) -> torch.Tensor:
    """Reward: 1 with the cube at the target, 0.24 a scale away from it, times :func:`height`; (num_envs,)."""
    return closeness(cube_to_target(env, cube, command), scale_m) * height(env, cube, low_m, high_m)


def off_table(env: Env, cube: str, x_m: tuple[float, float], y_m: tuple[float, float]) -> torch.Tensor:
    """Termination: the cube (its free joint) has left the table, whose edges lie at x_m and y_m; (num_envs,) of bool."""
    x, y = env.sim.qpos[:, env.joints[cube].qpos][:, :2].unbind(dim=1)
    return (x < x_m[0]) | (x > x_m[1]) | (y < y_m[0]) | (y > y_m[1])


def closeness(vector: torch.Tensor, scale: float) -> torch.Tensor:
    """1 - tanh(length / scale) of vectors (num_envs, 3)."""
    return 1.0 - torch.tanh(vector.norm(dim=1) / scale)


def _transform(position: np.ndarray, quat: np.ndarray) -> torch.Tensor:
    """The homogeneous matrix (4, 4) of a position and a unit quaternion."""
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, quat)
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation.reshape(3, 3), position
    return torch.from_numpy(matrix)
