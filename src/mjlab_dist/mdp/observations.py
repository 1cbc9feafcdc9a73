"""Observations that any task can use, over all envs at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.term import Term
from mjlab_dist.mdp.sensors import Contact

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def joint_position(env: Env, joint: str) -> torch.Tensor:
    """A joint's position, in m or rad; (num_envs, 1) for a slide or hinge."""
    return env.sim.qpos[:, env.joints[joint].qpos]


def joint_velocity(env: Env, joint: str) -> torch.Tensor:
    """A joint's velocity, in m/s or rad/s; (num_envs, 1) for a slide or hinge."""
    return env.sim.qvel[:, env.joints[joint].qvel]


class JointPositions(Term):
    """Positions of hinge and slide joints relative to the start state, in rad or m; (num_envs, joints)."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Look up joints by regular expressions of their names."""
        self._columns = env.find_joints(joints).qpos
        self._home = self._columns.of(env.reference.qpos)

    def __call__(self, env: Env) -> torch.Tensor:
        """Observe."""
        return self._columns.of(env.sim.qpos) - self._home


class JointVelocities(Term):
    """Velocities of hinge and slide joints, in rad/s or m/s; (num_envs, joints)."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Look up joints by regular expressions of their names."""
        self._columns = env.find_joints(joints).qvel

    def __call__(self, env: Env) -> torch.Tensor:
        """Observe."""
        return self._columns.of(env.sim.qvel)


def base_linear_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Velocity of a free-floating body in its own frame, in m/s; (num_envs, 3)."""
    return env.base(joint).linear_velocity


def base_angular_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Angular velocity of a free-floating body in its own frame, as a gyroscope measures it, in rad/s; (num_envs, 3)."""
    return env.sim.qvel[:, env.joints[joint].qvel][:, 3:]


def base_height(env: Env, joint: str = "root") -> torch.Tensor:
    """Height of a free-floating body over its env's origin, in m; (num_envs, 1)."""
    return (env.sim.qpos[:, env.joints[joint].qpos][:, 2] - env.origins[:, 2]).unsqueeze(1)


def projected_gravity(env: Env, joint: str = "root") -> torch.Tensor:
    """The direction of gravity in a free-floating body's frame, a unit vector, (0, 0, -1) upright; (num_envs, 3)."""
    return env.base(joint).gravity


def last_action(env: Env) -> torch.Tensor:
    """The policy's last output; (num_envs, num_actions), 0 when an episode starts."""
    return env.actions


def command(env: Env, name: str) -> torch.Tensor:
    """A command's value; (num_envs, k)."""
    return env.command(name)


def sensor(env: Env, name: str) -> torch.Tensor:
    """A MuJoCo sensor's data, in its units; (num_envs, dim)."""
    return env.sim.sensor(name)


def in_contact(env: Env, sensor: str) -> torch.Tensor:
    """Whether the bodies of a contact sensor of ``env.sensors`` touch, 1 or 0; (num_envs, k)."""
    return env.sensor(sensor, Contact).in_contact.float()


def contact_force(env: Env, sensor: str) -> torch.Tensor:
    """Forces of a contact sensor of ``env.sensors``, in N; (num_envs, 3 * k)."""
    return env.sensor(sensor, Contact).force_n.flatten(1)


def air_time(env: Env, sensor: str) -> torch.Tensor:
    """How long the bodies of a contact sensor of ``env.sensors`` have been in the air, in s; (num_envs, k)."""
    return env.sensor(sensor, Contact).air_time_s


def model_field(env: Env, field: str) -> torch.Tensor:
    """A field of the model that is drawn per env, such as geom_friction, flat, for a critic to see; (num_envs, size)."""
    return env.sim.field(field).flatten(1)
