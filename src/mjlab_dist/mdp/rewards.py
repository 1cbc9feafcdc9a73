"""Reward terms for any task. Each returns (num_envs,); the config sets the weights and their signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import torch
from torch.nn import functional

from mjlab_dist.env.columns import Columns, write_rows
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.observations import base_angular_velocity, base_height, base_linear_velocity, projected_gravity
from mjlab_dist.mdp.sensors import Contact, Gait

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def alive(env: Env) -> torch.Tensor:
    """Return 1 unless the episode was terminated; a timeout is not a termination."""
    return (~env.terminated).float()


def terminated(env: Env) -> torch.Tensor:
    """Return 1 if the episode was terminated, else 0; a timeout is not a termination."""
    return env.terminated.float()


def track_linear_velocity(env: Env, command: str, std_m_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """Return exp(-|error|^2 / std^2), with the error of the linear velocity along the base's x and y axes.

    Source: Rudin et al. 2022, arXiv:2109.11978, table 4.
    """
    error = env.command(command)[:, :2] - base_linear_velocity(env, joint)[:, :2]
    return torch.exp(error.square().sum(dim=1) * (-1.0 / std_m_s**2))


def track_heading_velocity(env: Env, command: str, std_m_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """Return exp(-|error|^2 / std^2), with the velocity error in the horizontal frame that turns with the heading.

    This reward suits robots that walk upright and sway.
    """
    error = env.command(command)[:, :2] - env.base(joint).level_velocity[:, :2]
    return torch.exp(error.square().sum(dim=1) * (-1.0 / std_m_s**2))


def track_yaw_rate(env: Env, command: str, std_rad_s: float = 0.5, joint: str = "root") -> torch.Tensor:
    """Return exp(-error^2 / std^2), with the error of the yaw rate."""
    error = env.command(command)[:, 2] - base_angular_velocity(env, joint)[:, 2]
    return torch.exp(error.square() * (-1.0 / std_rad_s**2))


def vertical_velocity(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the squared velocity along the base's own z axis, in m²/s²."""
    return base_linear_velocity(env, joint)[:, 2].square()


def tilt_rate(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the sum of the squared roll and pitch rates of the base, in rad²/s²."""
    return base_angular_velocity(env, joint)[:, :2].square().sum(dim=1)


def tilt(env: Env, joint: str = "root") -> torch.Tensor:
    """Return the squared sine of the angle between the base's z axis and the vertical."""
    return projected_gravity(env, joint)[:, :2].square().sum(dim=1)


def height_error(env: Env, target_m: float, joint: str = "root") -> torch.Tensor:
    """Return the squared difference between the base's height above the env's origin and target_m, in m²."""
    return (base_height(env, joint).squeeze(1) - target_m).square()


def action_rate(env: Env) -> torch.Tensor:
    """Return the sum of squared changes of the action since the previous step."""
    return functional.mse_loss(env.actions, env.previous_actions, reduction="none").sum(dim=1)


def action_size(env: Env) -> torch.Tensor:
    """Return the sum of squared actions."""
    return env.actions.square().sum(dim=1)


def actuator_force(env: Env) -> torch.Tensor:
    """Return the sum of squared actuator forces in the last physics step, in N² or (N m)²."""
    return env.sim.view("actuator_force").square().sum(dim=1)


class JointAcceleration(Term):
    """Sum of squared joint accelerations, each averaged over the step, in rad²/s⁴ or m²/s⁴."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",), entity: str | None = None) -> None:
        """Find the joints whose names match the regular expressions."""
        self._columns = env.find_joints(joints, entity).qvel
        self._dt_s = env.step_dt_s
        self._before = self._columns.of(env.sim.qvel).clone()
        self._live = env.sim.qvel

    def __call__(self, env: Env) -> torch.Tensor:
        velocity = self._columns.of(env.sim.qvel)
        squares = functional.mse_loss(velocity, self._before, reduction="none")
        self._before.copy_(velocity)
        return squares.sum(dim=1) / self._dt_s**2

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self._before, mask, self._columns.of(self._live))

    def state(self) -> dict[str, torch.Tensor]:
        return {"before": self._before}


class JointVelocity(Term):
    """Sum of squared joint velocities, in rad²/s² or m²/s²."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",), entity: str | None = None) -> None:
        """Find the joints whose names match the regular expressions."""
        self._columns = env.find_joints(joints, entity).qvel

    def __call__(self, env: Env) -> torch.Tensor:
        return self._columns.of(env.sim.qvel).square().sum(dim=1)


class JointDeviation(Term):
    """Sum of the joints' absolute differences from the start state, in rad or m."""

    def __init__(self, env: Env, joints: tuple[str, ...] = (".*",), entity: str | None = None) -> None:
        """Find the joints whose names match the regular expressions."""
        self._columns = env.find_joints(joints, entity).qpos
        self._home = self._columns.of(env.reference.qpos)

    def __call__(self, env: Env) -> torch.Tensor:
        return torch.linalg.vector_norm(self._columns.of(env.sim.qpos) - self._home, ord=1, dim=1)


class JointLimits(Term):
    """Sum of the distances by which joints exceed a fraction of their ranges, in rad or m."""

    def __init__(
        self, env: Env, joints: tuple[str, ...] = (".*",), share: float = 0.9, entity: str | None = None
    ) -> None:
        """Look up the joints.

        Args:
            env: The envs.
            joints: Regular expressions that match the joints' names.
            share: Fraction of each range, around its middle, that has no cost.
            entity: Entity that the joints belong to; None for all.
        """
        found = env.find_joints(joints, entity)
        self._columns = found.qpos
        middle, half = (found.upper + found.lower) / 2, (found.upper - found.lower) / 2
        # A joint without limits has an infinite range, whose middle is NaN.
        free = ~half.isfinite()
        self._low = (middle - share * half).masked_fill(free, -torch.inf)
        self._high = (middle + share * half).masked_fill(free, torch.inf)

    def __call__(self, env: Env) -> torch.Tensor:
        position = self._columns.of(env.sim.qpos)
        return torch.linalg.vector_norm(position.clamp(self._low, self._high).sub_(position), ord=1, dim=1)


def feet_air_time(env: Env, sensor: str, command: str, min_s: float = 0.5, moving_m_s: float = 0.1) -> torch.Tensor:
    """Return the air time minus min_s, in s, summed over the feet that land in this step.

    The term is 0 while the commanded speed is at most moving_m_s. Source: Rudin et al. 2022, arXiv:2109.11978.
    """
    feet = env.sensor(sensor, Contact)
    time = ((feet.last_air_time_s - min_s) * feet.first_contact).sum(dim=1)
    return time * (env.command(command)[:, :2].norm(dim=1) > moving_m_s)


def contacts(env: Env, sensor: str, min_n: float = 0.0) -> torch.Tensor:
    """Return how many bodies of a contact sensor of ``env.sensors`` touch something with at least min_n N."""
    return env.sensor(sensor, Contact).touching(min_n).sum(dim=1, dtype=torch.float32)


class FootSlip(Term):
    """Sum of the squared horizontal speeds of the feet that are in contact, in m²/s².

    MuJoCo's ``framelinvel`` sensors measure the velocities of the feet's sites. Both the velocities and the contacts
    are those at the start of the last substep.
    """

    def __init__(self, env: Env, sensor: str, velocities: tuple[str, ...]) -> None:
        """Look up the sensors.

        Args:
            env: The envs.
            sensor: Name of a contact sensor of ``env.sensors``; its bodies are the k feet.
            velocities: Names of the k ``framelinvel`` sensors of the MJCF, in the order of the feet.

        Raises:
            UserError: If the number of velocity sensors differs from the number of feet.
        """
        self._feet = env.sensor(sensor, Contact)
        if len(velocities) != len(self._feet.names):
            raise UserError(
                f"foot slip: {len(velocities)} velocity sensors, but the contact sensor {sensor} has "
                f"{len(self._feet.names)} feet; name one velocity sensor for each foot"
            )
        addresses = [int(env.sim.model.sensor(name).adr[0]) for name in velocities]
        self._columns = Columns([adr + i for adr in addresses for i in range(2)], env.device)

    def __call__(self, env: Env) -> torch.Tensor:
        speed = self._columns.of(env.sim.view("sensordata")).view(env.num_envs, -1, 2).square().sum(dim=2)
        return (speed * self._feet.in_contact).sum(dim=1)


def scheduled_contacts(env: Env, gait: str, contacts: str) -> torch.Tensor:
    """Return the fraction of feet that stand or swing as a Gait sensor demands.

    The bodies of the Contact sensor ``contacts`` are the feet of the Gait sensor ``gait``, in the same order.
    """
    stands = env.sensor(gait, Gait).swing <= 0.0
    return (env.sensor(contacts, Contact).in_contact == stands).mean(dim=1, dtype=torch.float32)


class FootLift(Term):
    """How closely the feet follow the heights that a Gait sensor demands; 0 while the robot should stand.

    The target height of a foot rises from 0 to height_m and falls to 0 with the sine of the foot's phase while the foot
    swings, and is 0 while it stands. The value is the sum over the feet of (target height - distance from it) /
    height_m. A foot's height above the ground is relative to its height in the start state.
    """

    def __init__(self, env: Env, gait: str, height_m: float) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            gait: Name of a Gait sensor of ``env.sensors``.
            height_m: Target height in the middle of a swing.
        """
        self._gait, self._height_m = gait, height_m
        sensor = env.sensor(gait, Gait)
        model = env.sim.model
        data = mujoco.MjData(model)
        data.qpos[:] = env.reference.qpos[0].cpu().numpy()
        mujoco.mj_kinematics(model, data)
        start = [float(getattr(data, sensor.kind)(name).xpos[2]) for name in sensor.feet.names]
        self._start_m = torch.tensor(start, device=env.device)
        self._ground_m: torch.Tensor | None = None
        if env.terrain is not None:
            self._ground_m = torch.from_numpy(env.terrain.heights).to(env.device)[None, None]
            self._half_m = torch.tensor(env.terrain.size_m, device=env.device)

    def __call__(self, env: Env) -> torch.Tensor:
        gait = env.sensor(self._gait, Gait)
        target = gait.swing.clamp(min=0.0) * self._height_m
        feet, ground = gait.feet.pos, env.origins[:, 2:]
        if self._ground_m is not None:
            places = (feet[..., :2] / self._half_m).unsqueeze(0)  # from -1 to 1
            ground = functional.grid_sample(self._ground_m, places, padding_mode="border", align_corners=True)
            ground = ground.view(feet.shape[:2])
        height = feet[..., 2] - ground - self._start_m
        followed = (target - (height - target).abs()) * (gait.swing != 0.0)
        return followed.sum(dim=1) / self._height_m


def stand_still(env: Env, command: str, moving_m_s: float = 0.1, joint: str = "root") -> torch.Tensor:
    """Return the squared speed of the base along its x and y axes, in m²/s², if the robot must stand, else 0.

    The robot must stand if the norm of the command is less than moving_m_s.
    """
    velocity = base_linear_velocity(env, joint)
    return velocity[:, :2].square().sum(dim=1) * (env.command(command).norm(dim=1) < moving_m_s)
