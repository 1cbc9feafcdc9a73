"""Rewards that any task can use: one number per env, (num_envs,). Weights, and so signs, are the config's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import Columns, write_rows
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.observations import base_angular_velocity, base_height, base_linear_velocity, projected_gravity
from mjlab_dist.mdp.sensors import Contact

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def alive(env: Env) -> torch.Tensor:
    """1 where the episode goes on or only its time is up."""
    return (~env.terminated).float()


def terminated(env: Env) -> torch.Tensor:
    """1 where the episode has ended otherwise than by time."""
    return env.terminated.float()


def track_linear_velocity(env: Env, command: str, std_m_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """exp(-|error|^2 / std^2) of the velocity along the body's x and y (Rudin et al. 2022, arXiv:2109.11978, table 4), at most 1."""
    error = env.command(command)[:, :2] - base_linear_velocity(env, joint)[:, :2]
    return torch.exp(error.square().sum(dim=1) * (-1.0 / std_m_s**2))


def track_heading_velocity(env: Env, command: str, std_m_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """As :func:`track_linear_velocity`, in the frame of the body's heading, which neither tilts nor rolls: for upright robots."""
    error = env.command(command)[:, :2] - env.base(joint).level_velocity[:, :2]
    return torch.exp(error.square().sum(dim=1) * (-1.0 / std_m_s**2))


def track_yaw_rate(env: Env, command: str, std_rad_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """exp(-error^2 / std^2) of the yaw rate, at most 1."""
    error = env.command(command)[:, 2] - base_angular_velocity(env, joint)[:, 2]
    return torch.exp(error.square() * (-1.0 / std_rad_s**2))


def vertical_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Square of a body's velocity along its own z, in m2/s2."""
    return base_linear_velocity(env, joint)[:, 2].square()


def tilt_rate(env: Env, joint: str = "root") -> torch.Tensor:
    """Squares of a body's roll and pitch rates, in rad2/s2."""
    return base_angular_velocity(env, joint)[:, :2].square().sum(dim=1)


def tilt(env: Env, joint: str = "root") -> torch.Tensor:
    """Square of the sine of the angle between a body's z axis and the vertical."""
    return projected_gravity(env, joint)[:, :2].square().sum(dim=1)


def height_error(env: Env, target_m: float, joint: str = "root") -> torch.Tensor:
    """Square of the difference from a height over the env's origin, in m2."""
    return (base_height(env, joint).squeeze(1) - target_m).square()


def action_rate(env: Env) -> torch.Tensor:
    """Squares of the changes of the policy's output since the step before."""
    return (env.actions - env.previous_actions).square().sum(dim=1)


def action_size(env: Env) -> torch.Tensor:
    """Squares of the policy's output."""
    return env.actions.square().sum(dim=1)


def actuator_force(env: Env) -> torch.Tensor:
    """Squares of all actuators' forces at the end of the step, in N2 or N2m2."""
    return env.sim.view("actuator_force").square().sum(dim=1)


class JointAcceleration(Term):
    """Squares of joints' mean accelerations over a step, in rad2/s4 or m2/s4."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Look up joints by regular expressions of their names."""
        self._columns = env.find_joints(joints).qvel
        self._dt_s = env.step_dt_s
        self._before = self._columns.of(env.sim.qvel).clone()
        self._live = env.sim.qvel

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        velocity = self._columns.of(env.sim.qvel)
        acceleration = (velocity - self._before) / self._dt_s
        self._before.copy_(velocity)
        return acceleration.square().sum(dim=1)

    def reset(self, mask: torch.Tensor) -> None:
        """Go on from the start state."""
        write_rows(self._before, mask, self._columns.of(self._live))

    def state(self) -> dict[str, torch.Tensor]:
        """Velocities of the step before."""
        return {"before": self._before}


class JointVelocity(Term):
    """Squares of joints' velocities, in rad2/s2 or m2/s2."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Look up joints by regular expressions of their names."""
        self._columns = env.find_joints(joints).qvel

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        return self._columns.of(env.sim.qvel).square().sum(dim=1)


class JointDeviation(Term):
    """Sum of joints' distances from the start state, in rad or m."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",)) -> None:
        """Look up joints by regular expressions of their names."""
        self._columns = env.find_joints(joints).qpos
        self._home = self._columns.of(env.reference.qpos)

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        return (self._columns.of(env.sim.qpos) - self._home).abs().sum(dim=1)


class JointLimits(Term):
    """How far joints are past a share of their ranges, in rad or m, summed."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",), share: float = 0.9) -> None:
        """Look up joints.

        Args:
            env: The envs.
            joints: Regular expressions of their names.
            share: Share of each range, around its middle, that costs nothing.
        """
        found = env.find_joints(joints)
        self._columns = found.qpos
        middle, half = (found.upper + found.lower) / 2, (found.upper - found.lower) / 2
        # A joint without limits has an infinite range, whose middle is no number.
        free = ~half.isfinite()
        self._low = (middle - share * half).masked_fill(free, -torch.inf)
        self._high = (middle + share * half).masked_fill(free, torch.inf)

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        position = self._columns.of(env.sim.qpos)
        return position.clamp(self._low, self._high).sub_(position).abs_().sum(dim=1)


def feet_air_time(env: Env, sensor: str, command: str, least_s: float = 0.5, moving_m_s: float = 0.1) -> torch.Tensor:
    """Time in the air beyond least_s of each foot that touches down, in s, where the robot is told to move (Rudin et al. 2022)."""
    feet = env.sensor(sensor, Contact)
    time = ((feet.last_air_time_s - least_s) * feet.first_contact).sum(dim=1)
    return time * (env.command(command)[:, :2].norm(dim=1) > moving_m_s)


def contacts(env: Env, sensor: str, least_n: float = 0.0) -> torch.Tensor:
    """How many bodies of a contact sensor touch with a force of least_n or more, in N."""
    return env.sensor(sensor, Contact).touching(least_n).sum(dim=1, dtype=torch.float32)


class FootSlip(Term):
    """Squares of feet's speeds over ground where they touch, in m2/s2.

    The velocity is that of the feet's sites as MuJoCo's frame velocity sensors measure it, at the start of the last substep, as the touch.
    """

    def __init__(self, env: Env, sensor: str, velocities: tuple[str, ...]) -> None:
        """Look up sensors.

        Args:
            env: The envs.
            sensor: A contact sensor of ``env.sensors``, of k feet.
            velocities: Names of k ``framelinvel`` sensors of the MJCF, in the same order.

        Raises:
            UserError: If they are not as many as the feet.
        """
        self._feet = env.sensor(sensor, Contact)
        if len(velocities) != len(self._feet.names):
            raise UserError(
                f"foot slip: {len(velocities)} velocity sensors for the {len(self._feet.names)} feet of {sensor}; name one each"
            )
        addresses = [int(env.sim.model.sensor(name).adr[0]) for name in velocities]
        self._columns = Columns([adr + i for adr in addresses for i in range(2)], env.device)

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        speed = self._columns.of(env.sim.view("sensordata")).view(env.num_envs, -1, 2).square().sum(dim=2)
        return (speed * self._feet.in_contact).sum(dim=1)


def stand_still(env: Env, command: str, moving_m_s: float = 0.1, joint: str = "root") -> torch.Tensor:
    """Square of the body's speed over ground, in m2/s2, where the robot is told to stand."""
    velocity = base_linear_velocity(env, joint)
    return velocity[:, :2].square().sum(dim=1) * (env.command(command).norm(dim=1) < moving_m_s)
