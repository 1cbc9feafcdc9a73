"""Observation terms for any task. Each returns one row per env."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.term import Term
from mjlab_dist.mdp.sensors import Contact

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def joint_position(env: Env, joint: str) -> torch.Tensor:
    """Return a joint's part of ``qpos``, in m or rad; (num_envs, 1) for a slide or hinge joint."""
    return env.sim.qpos[:, env.joints[joint].qpos]


def joint_velocity(env: Env, joint: str) -> torch.Tensor:
    """Return a joint's part of ``qvel``, in m/s or rad/s; (num_envs, 1) for a slide or hinge joint."""
    return env.sim.qvel[:, env.joints[joint].qvel]


class JointPositions(Term):
    """Positions of hinge and slide joints relative to the start state, in rad or m; (num_envs, joints)."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Find the joints whose names match the regular expressions."""
        self._columns = env.find_joints(joints).qpos
        self._home = self._columns.of(env.reference.qpos)

    def __call__(self, env: Env) -> torch.Tensor:
        return self._columns.of(env.sim.qpos) - self._home


class JointVelocities(Term):
    """Velocities of hinge and slide joints, in rad/s or m/s; (num_envs, joints)."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Find the joints whose names match the regular expressions."""
        self._columns = env.find_joints(joints).qvel

    def __call__(self, env: Env) -> torch.Tensor:
        return self._columns.of(env.sim.qvel)


def base_linear_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the linear velocity of a floating base in its own frame, in m/s; (num_envs, 3)."""
    return env.base(joint).linear_velocity


def base_angular_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the angular velocity of a floating base in its own frame, as a gyroscope measures it, in rad/s.

    The shape is (num_envs, 3).
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 3:]


def base_height(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the height of a floating base above its env's origin, in m; (num_envs, 1)."""
    return (env.sim.qpos[:, env.joints[joint].qpos][:, 2] - env.origins[:, 2]).unsqueeze(1)


def projected_gravity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the direction of gravity in the base's frame: a unit vector, (0, 0, -1) when upright; (num_envs, 3)."""
    return env.base(joint).gravity


def last_action(env: Env) -> torch.Tensor:
    """Return the policy's last output, (num_envs, num_actions); 0 at the start of an episode."""
    return env.actions


def command(env: Env, name: str) -> torch.Tensor:
    """Return the value of a command of ``env.commands``; (num_envs, k)."""
    return env.command(name)


def sensor(env: Env, name: str) -> torch.Tensor:
    """Return the data of a MuJoCo sensor, in the sensor's units; (num_envs, dim)."""
    return env.sim.sensor(name)


def in_contact(env: Env, sensor: str) -> torch.Tensor:
    """Return 1 for each body of a contact sensor of ``env.sensors`` that is in contact, else 0; (num_envs, k)."""
    return env.sensor(sensor, Contact).in_contact.float()


def contact_force(env: Env, sensor: str) -> torch.Tensor:
    """Return the forces of a contact sensor of ``env.sensors``, in N; (num_envs, 3 * k)."""
    return env.sensor(sensor, Contact).force_n.flatten(1)


def air_time(env: Env, sensor: str) -> torch.Tensor:
    """Return how long each body of a contact sensor of ``env.sensors`` has been in the air, in s; (num_envs, k)."""
    return env.sensor(sensor, Contact).air_time_s


def model_field(env: Env, field: str) -> torch.Tensor:
    """Return a randomized field of the model, such as geom_friction, for the critic; (num_envs, size of the field)."""
    return env.sim.field(field).flatten(1)
