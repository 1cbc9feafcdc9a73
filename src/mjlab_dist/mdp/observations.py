"""Observation terms for any task. Each returns one row per env."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import uniform, write_rows
from mjlab_dist.env.frames import FrameKind
from mjlab_dist.env.term import Term
from mjlab_dist.mdp.mirror import ROTATION, SAME, VECTOR, Image, Mirror, mirrored
from mjlab_dist.mdp.rotation import first_columns
from mjlab_dist.mdp.sensors import Contact, Gait

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def joint_position(env: Env, joint: str) -> torch.Tensor:
    """Return a joint's part of ``qpos``, in m or rad; (num_envs, 1) for a slide or hinge joint."""
    return env.sim.qpos[:, env.joints[joint].qpos]


def joint_velocity(env: Env, joint: str) -> torch.Tensor:
    """Return a joint's part of ``qvel``, in m/s or rad/s; (num_envs, 1) for a slide or hinge joint."""
    return env.sim.qvel[:, env.joints[joint].qvel]


class JointPositions(Term):
    """Positions of hinge and slide joints relative to the start state, in rad or m; (num_envs, joints).

    Attributes:
        bias: Error of each encoder, constant in an episode, (num_envs, joints).
    """

    schedulable = ("bias",)

    def __init__(
        self,
        env: Env,
        joints: tuple[str, ...] = (".*",),
        entity: str | None = None,
        bias: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            joints: Regular expressions that match the joints' names.
            entity: Entity that the joints belong to; None for all.
            bias: Range of an offset in rad or m that is added to each position. Offsets are sampled for every episode.
        """
        found = env.find_joints(joints, entity)
        self._names, self._columns = found.names, found.qpos
        self._home = self._columns.of(env.reference.qpos)
        self._range = bias
        self._is_biased = isinstance(bias[0], torch.Tensor) or bias != (0.0, 0.0)  # a curriculum may widen a range of 0
        self.bias = torch.zeros_like(self._home)

    def __call__(self, env: Env) -> torch.Tensor:
        position = self._columns.of(env.sim.qpos) - self._home
        return position.add_(self.bias) if self._is_biased else position

    def mirrored(self, mirror: Mirror) -> Image:
        return mirror.joints(self._names)

    def reset(self, mask: torch.Tensor) -> None:
        if self._is_biased:
            write_rows(self.bias, mask, uniform(self.bias, *self._range))

    def state(self) -> dict[str, torch.Tensor]:
        return {"bias": self.bias} if self._is_biased else {}


class JointAngles(Term):
    """Sines, then cosines, of the positions of hinges relative to the start state; (num_envs, 2 * joints).

    The position of a hinge grows with every full turn. Its sine and cosine stay between -1 and 1, and are the same
    after a full turn.
    """

    def __init__(self, env: Env, joints: tuple[str, ...], entity: str | None = None) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            joints: Regular expressions that match the names of the hinges.
            entity: Entity that the joints belong to; None for all.
        """
        found = env.find_joints(joints, entity)
        self._names, self._columns = found.names, found.qpos
        self._home = self._columns.of(env.reference.qpos)

    def __call__(self, env: Env) -> torch.Tensor:
        angle = self._columns.of(env.sim.qpos) - self._home
        return torch.cat([angle.sin(), angle.cos()], dim=1)

    def mirrored(self, mirror: Mirror) -> Image:
        sines = mirror.joints(self._names)
        return [*sines, *((len(sines) + other, 1) for other, _ in sines)]


class JointVelocities(Term):
    """Velocities of hinge and slide joints, in rad/s or m/s; (num_envs, joints)."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",), entity: str | None = None) -> None:
        """Find the joints whose names match the regular expressions."""
        found = env.find_joints(joints, entity)
        self._names, self._columns = found.names, found.qvel

    def __call__(self, env: Env) -> torch.Tensor:
        return self._columns.of(env.sim.qvel)

    def mirrored(self, mirror: Mirror) -> Image:
        return mirror.joints(self._names)


class _FrameTerm(Term):
    """An observation of frames, relative to another frame or to the world."""

    def __init__(
        self,
        env: Env,
        *,
        names: tuple[str, ...],
        kind: FrameKind = "body",
        entity: str | None = None,
        reference: str = "",
        reference_kind: FrameKind = "body",
        reference_entity: str | None = None,
    ) -> None:
        """Look up the frames.

        Args:
            env: The envs.
            names: Regular expressions that match the names of the frames.
            kind: Kind of the frames: body, site or geom.
            entity: Entity that the frames belong to; None for all.
            reference: Name of a reference frame. Values are relative to this frame, along its axes. Default: the
                world frame; positions are then relative to the env's origin.
            reference_kind: Kind of the reference frame: body, site or geom.
            reference_entity: Entity that the reference frame belongs to; None for all.
        """
        self._frames = env.find_frames(kind, names, entity)
        self._in_world = not reference
        if reference:
            other = env.find_frames(reference_kind, (re.escape(reference),), reference_entity)
            self._frames = self._frames.relative_to(other)


class FramePositions(_FrameTerm):
    """Positions of bodies, sites or geoms, in m; (num_envs, 3 * k) for k frames."""

    def __call__(self, env: Env) -> torch.Tensor:
        pos = self._frames.pos
        return (pos - env.origins.unsqueeze(1) if self._in_world else pos).flatten(1)


class FrameOrientations(_FrameTerm):
    """Orientations of k bodies, sites or geoms: the first two columns of their rotation matrices; (num_envs, 6 * k).

    Unlike quaternions, these numbers have no jumps.
    """

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        return first_columns(self._frames.quat).flatten(1)


class FrameLinearVelocities(_FrameTerm):
    """Linear velocities of bodies (at their origins), sites or geoms, in m/s; (num_envs, 3 * k) for k frames."""

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        return self._frames.linear_velocity.flatten(1)


class FrameAngularVelocities(_FrameTerm):
    """Angular velocities of bodies, sites or geoms, in rad/s; (num_envs, 3 * k) for k frames."""

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        return self._frames.angular_velocity.flatten(1)


class FrameDistances(_FrameTerm):
    """Distances of bodies, sites or geoms from the reference frame, in m; (num_envs, k) for k frames."""

    def __call__(self, env: Env) -> torch.Tensor:
        pos = self._frames.pos
        return (pos - env.origins.unsqueeze(1) if self._in_world else pos).norm(dim=2)


class SurfaceDistances(Term):
    """Distances between the surfaces of pairs of geoms, in m; (num_envs, k) for k pairs.

    ``sim.distances`` declares the pairs. The distance of geoms that overlap is negative.
    """

    def __init__(self, env: Env, distances: str) -> None:
        """Look up the distances.

        Args:
            env: The envs.
            distances: Name of an entry of sim.distances.
        """
        self._distance_m = env.find_distances(distances).distance_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        return self._distance_m


@mirrored(VECTOR)
def base_linear_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the linear velocity of a floating base in its own frame, in m/s; (num_envs, 3)."""
    return env.base(joint).linear_velocity


@mirrored(ROTATION)
def base_angular_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the angular velocity of a floating base in its own frame, as a gyroscope measures it, in rad/s.

    The shape is (num_envs, 3).
    """
    return env.sim.qvel[:, env.joints[joint].qvel][:, 3:]


@mirrored(SAME)
def base_height(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the height of a floating base above its env's origin, in m; (num_envs, 1)."""
    return (env.sim.qpos[:, env.joints[joint].qpos][:, 2] - env.origins[:, 2]).unsqueeze(1)


@mirrored(VECTOR)
def projected_gravity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the direction of gravity in the base's frame: a unit vector, (0, 0, -1) when upright; (num_envs, 3)."""
    return env.base(joint).gravity


@mirrored(lambda mirror: mirror.actions)
def last_action(env: Env) -> torch.Tensor:
    """Return the policy's last output, (num_envs, num_actions); 0 at the start of an episode."""
    return env.actions


@mirrored(lambda mirror, name: mirror.term(mirror.env.find_command(name)))
def command(env: Env, name: str) -> torch.Tensor:
    """Return the value of a command of ``env.commands``; (num_envs, k)."""
    return env.command(name)


def sensor(env: Env, name: str) -> torch.Tensor:
    """Return the data of a MuJoCo sensor, in the sensor's units; (num_envs, dim)."""
    return env.sim.sensor(name)


@mirrored(lambda mirror, sensor: mirror.term(mirror.env.sensor(sensor, Contact)))
def in_contact(env: Env, sensor: str) -> torch.Tensor:
    """Return whether each body of a contact sensor touches something, as 1 or 0; (num_envs, k) for k bodies."""
    return env.sensor(sensor, Contact).in_contact.float()


def contact_force(env: Env, sensor: str) -> torch.Tensor:
    """Return the force that each body of a contact sensor exerts on what it touches, in N.

    The shape is (num_envs, 3 * k) for k bodies.
    """
    return env.sensor(sensor, Contact).force_n.flatten(1)


@mirrored(lambda mirror, sensor: mirror.term(mirror.env.sensor(sensor, Contact)))
def air_time(env: Env, sensor: str) -> torch.Tensor:
    """Return how long each body of a contact sensor has been in the air, in s; (num_envs, k) for k bodies."""
    return env.sensor(sensor, Contact).air_time_s


@mirrored(lambda mirror, sensor: mirror.term(mirror.env.sensor(sensor, Gait)))
def gait_clock(env: Env, sensor: str) -> torch.Tensor:
    """Return sine and cosine of the phase of a Gait sensor; 0 while the robot should stand; (num_envs, 2)."""
    return env.sensor(sensor, Gait).clock


def model_field(env: Env, field: str) -> torch.Tensor:
    """Return a randomized field of the model, such as geom_friction, for the critic; (num_envs, size of the field)."""
    return env.sim.field(field).flatten(1)
