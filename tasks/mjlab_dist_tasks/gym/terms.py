"""Terms of Gymnasium's MuJoCo v5 tasks (gymnasium/envs/mujoco/*_v5.py)."""

from __future__ import annotations

import math

import mujoco_warp as mjw
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import uniform, write_rows
from mjlab_dist.env.term import Sensor, Term

# Observations


def positions(env: Env, skip: int = 0) -> torch.Tensor:
    """Observation: all joint positions except the first ``skip``, in m and rad; (num_envs, nq - skip).

    Args:
        env: The envs.
        skip: Number of joint positions to leave out.
    """
    return env.sim.qpos[:, skip:]


def velocities(env: Env) -> torch.Tensor:
    """Observation: all joint velocities, in m/s and rad/s; (num_envs, nv)."""
    return env.sim.qvel


def wrenches(env: Env, sensor: str) -> torch.Tensor:
    """Observation: contact torques and forces on all bodies but the world, in N m and N.

    The shape is (num_envs, 6 * (nbody - 1)).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Wrenches.
    """
    return env.sensor(sensor, Wrenches).cfrc_ext[:, 1:].flatten(1)


def inertias(env: Env, sensor: str) -> torch.Tensor:
    """Observation: inertias and masses of all bodies but the world; (num_envs, 10 * (nbody - 1)).

    Inertias are about the center of mass of the body's tree.

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Bodies.
    """
    return env.sensor(sensor, Bodies).cinert[:, 1:].flatten(1)


def body_velocities(env: Env, sensor: str) -> torch.Tensor:
    """Observation: angular and linear velocities of all bodies but the world, in rad/s and m/s.

    The shape is (num_envs, 6 * (nbody - 1)).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Bodies.
    """
    return env.sensor(sensor, Bodies).cvel[:, 1:].flatten(1)


def actuator_torques(env: Env, sensor: str) -> torch.Tensor:
    """Observation: torques of the actuators on all joints except the floating base, in N m; (num_envs, nv - 6).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Bodies.
    """
    return env.sensor(sensor, Bodies).qfrc_actuator[:, 6:]


def arm_direction(env: Env) -> torch.Tensor:
    """Observation: cosines and then sines of the two joint angles of the reacher's arm; (num_envs, 4)."""
    angles = env.sim.qpos[:, :2]
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def arm_velocity(env: Env) -> torch.Tensor:
    """Observation: velocities of the two joints of the reacher's arm, in rad/s; (num_envs, 2)."""
    return env.sim.qvel[:, :2]


def to_target(env: Env, sensor: str) -> torch.Tensor:
    """Observation: vector from the target to the reacher's fingertip, in m; (num_envs, 2).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Arm.
    """
    return env.sensor(sensor, Arm).to_target_m[:, :2]


# Rewards


class Speed(Term):
    """Reward: mean speed along x in the last step, in m/s, from the displacement of a joint; (num_envs,)."""

    def __init__(self, env: Env, joint: str = "rootx") -> None:
        """Look up the joint.

        Args:
            env: The envs.
            joint: Name of a slide joint along x.
        """
        self._position = env.sim.qpos[:, env.joints[joint].qpos.start]
        self._before_m = self._position.clone()

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the speed. Call it once per step."""
        speed = (self._position - self._before_m) / env.step_dt_s
        self._before_m.copy_(self._position)
        return speed

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self._before_m, mask, self._position)

    def state(self) -> dict[str, torch.Tensor]:
        return {"before_m": self._before_m}


class BodySpeed(Term):
    """Reward: mean speed along x in the last step, in m/s, from the displacement of a floating body; (num_envs,).

    As in Gymnasium's ant, the displacement is computed from the body's pose, and not from the joint's position. The two
    differ, because MuJoCo computes the pose in the integrator's last stage, and not again at the end of the step.
    """

    def __init__(self, env: Env, body: str = "torso", joint: str = "root") -> None:
        """Look up the body.

        Args:
            env: The envs.
            body: Name of the floating body.
            joint: The body's free joint.
        """
        self._pose_m = env.sim.view("xpos")[:, env.sim.model.body(body).id, 0]
        self._start_m = env.sim.qpos[:, env.joints[joint].qpos.start]
        self._before_m = self._start_m.clone()

    def __call__(self, env: Env) -> torch.Tensor:
        """Return the speed. Call it once per step."""
        speed = (self._pose_m - self._before_m) / env.step_dt_s
        self._before_m.copy_(self._pose_m)
        return speed

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self._before_m, mask, self._start_m)

    def state(self) -> dict[str, torch.Tensor]:
        return {"before_m": self._before_m}


def mass_speed(env: Env, sensor: str) -> torch.Tensor:
    """Reward: mean speed of the center of mass along x in the last step, in m/s; (num_envs,).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Bodies.
    """
    return env.sensor(sensor, Bodies).speed_m_s


def healthy(
    env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], max_magnitude: float = math.inf
) -> torch.Tensor:
    """Reward: 1 if the robot is healthy, else 0; (num_envs,).

    The robot is healthy if all numbers that have bounds are finite and within their bounds.

    Args:
        env: The envs.
        first: Index of the joint position to which the first bounds apply. The next bounds apply to the next positions.
        low: Lower bounds, exclusive, in m and rad.
        high: Upper bounds, exclusive, in m and rad.
        max_magnitude: Upper bound, exclusive, of the magnitude of all positions except the first two, and of all
            velocities.
    """
    return is_healthy(env, first, low, high, max_magnitude).float()


def control_cost(env: Env) -> torch.Tensor:
    """Reward: sum of the squared actuator inputs, before MuJoCo clamps them; (num_envs,)."""
    return env.sim.ctrl.square().sum(dim=1)


def wrench_cost(env: Env, sensor: str, max_sum: float = math.inf, max_component: float = math.inf) -> torch.Tensor:
    """Reward: sum of the squared wrenches on all bodies, (num_envs,).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Wrenches.
        max_sum: Upper bound to which the sum is clipped.
        max_component: Bound to which the magnitude of each component is clipped, in N m and N.
    """
    components = env.sensor(sensor, Wrenches).cfrc_ext.flatten(1).clamp(-max_component, max_component)
    return components.square().sum(dim=1).clamp(max=max_sum)


def distance(env: Env, sensor: str) -> torch.Tensor:
    """Reward: distance between the reacher's fingertip and its target, in m; (num_envs,).

    Args:
        env: The envs.
        sensor: Name of a sensor of the class Arm.
    """
    return env.sensor(sensor, Arm).to_target_m.norm(dim=1)


# Terminations


def unhealthy(
    env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], max_magnitude: float = math.inf
) -> torch.Tensor:
    """Termination: the robot is not healthy, as defined by :func:`healthy`; (num_envs,) of bool.

    Args:
        env: The envs.
        first: Index of the joint position to which the first bounds apply. The next bounds apply to the next positions.
        low: Lower bounds, exclusive, in m and rad.
        high: Upper bounds, exclusive, in m and rad.
        max_magnitude: Upper bound, exclusive, of the magnitude of all positions except the first two, and of all
            velocities.
    """
    return ~is_healthy(env, first, low, high, max_magnitude)


def is_healthy(
    env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], max_magnitude: float
) -> torch.Tensor:
    """Return whether the robot is healthy, (num_envs,) of bool; see :func:`healthy`."""
    bounded = env.sim.qpos[:, first : first + len(low)].unbind(dim=1)
    fine = torch.ones_like(env.terminated)
    for position, least, greatest in zip(bounded, low, high, strict=True):
        fine &= (position > least) & (position < greatest)
    if max_magnitude < math.inf:
        fine &= (env.sim.qpos[:, 2:].abs() < max_magnitude).all(dim=1) & (env.sim.qvel.abs() < max_magnitude).all(dim=1)
    return fine


# Start states


def draw_state(env: Env, mask: torch.Tensor, position: float, velocity: float = 0.0, velocity_std: float = 0.0) -> None:
    """Event: add noise to the start state.

    Args:
        env: The envs.
        mask: Envs in which an episode starts, (num_envs,) of bool.
        position: Maximum magnitude of uniform noise on every joint position, in m and rad, including quaternions.
        velocity: Maximum magnitude of uniform noise on every joint velocity, in m/s and rad/s.
        velocity_std: Standard deviation of Gaussian noise on every joint velocity, in m/s and rad/s; used if velocity
            is 0.
    """
    qpos, qvel = env.reference
    write_rows(env.sim.qpos, mask, uniform(qpos, -position, position).add_(qpos))
    noise = uniform(qvel, -velocity, velocity) if velocity else torch.empty_like(qvel).normal_(std=velocity_std)
    write_rows(env.sim.qvel, mask, noise.add_(qvel))


def draw_target(env: Env, mask: torch.Tensor, radius_m: float) -> None:
    """Event: place the reacher's target at a random point of a disk around the shoulder, at rest.

    Args:
        env: The envs.
        mask: Envs in which an episode starts, (num_envs,) of bool.
        radius_m: Radius of the disk, in m.
    """
    drawn = torch.rand(env.num_envs, 2, device=env.device)
    radius, angle = radius_m * drawn[:, 0].sqrt(), 2.0 * math.pi * drawn[:, 1]
    write_rows(env.sim.qpos[:, 2:], mask, torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1))
    write_rows(env.sim.qvel[:, 2:], mask, 0.0)


# Sensors


class Wrenches(Sensor):
    """External torque and force on every body, computed after each step as in Gymnasium.

    Attributes:
        cfrc_ext: ``mujoco.MjData.cfrc_ext``, (num_envs, nbody, 6), in N m and N. Torques are about the center of mass
            of the body's tree. The values are those of the integrator's last stage, or 0 at the start of an episode.
    """

    def __init__(self, env: Env) -> None:
        """Record MuJoCo's Newton-Euler pass."""
        self.cfrc_ext = env.sim.view("cfrc_ext")
        self._compute = env.sim.record_wrenches()

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        self._compute()

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self.cfrc_ext, mask, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        return {"cfrc_ext": self.cfrc_ext}


class Bodies(Sensor):
    """Inertias, velocities and the center of mass, as MuJoCo computed them in the last stage of the integrator.

    As in Gymnasium, they are recomputed at the start of an episode.

    Attributes:
        cinert: ``mujoco.MjData.cinert``, (num_envs, nbody, 10), in kg m², kg m and kg.
        cvel: ``mujoco.MjData.cvel``, (num_envs, nbody, 6), in rad/s and m/s.
        qfrc_actuator: Torques of the actuators, (num_envs, nv), in N m; 0 at the start of an episode.
        speed_m_s: Mean speed of the center of mass along x in the last step, (num_envs,).
    """

    def __init__(self, env: Env) -> None:
        """Record MuJoCo's kinematics."""
        sim = env.sim
        mass_kg = torch.tensor(sim.model.body_mass, dtype=torch.float32, device=env.device)
        self._share = mass_kg / mass_kg.sum()
        self._views = {name: sim.view(name) for name in ("cinert", "cvel", "qfrc_actuator")}
        self.cinert, self.cvel, self.qfrc_actuator = (view.clone() for view in self._views.values())
        self._centres_m = sim.view("xipos")
        self.speed_m_s = torch.zeros(env.num_envs, device=env.device)
        self._centre_m = torch.zeros_like(self.speed_m_s)
        self._compute = sim.record(_kinematics)

    def update(self, env: Env) -> None:
        for name, view in self._views.items():
            getattr(self, name).copy_(view)
        centre_m = self._mass_centre_m()
        self.speed_m_s.copy_((centre_m - self._centre_m) / env.step_dt_s)
        self._centre_m.copy_(centre_m)

    def reset(self, mask: torch.Tensor) -> None:
        self._compute()
        write_rows(self.cinert, mask, self._views["cinert"])
        write_rows(self.cvel, mask, self._views["cvel"])
        write_rows(self.qfrc_actuator, mask, 0.0)
        write_rows(self.speed_m_s, mask, 0.0)
        write_rows(self._centre_m, mask, self._mass_centre_m())

    def state(self) -> dict[str, torch.Tensor]:
        names = ("cinert", "cvel", "qfrc_actuator", "speed_m_s")
        return {**{name: getattr(self, name) for name in names}, "centre_m": self._centre_m}

    def _mass_centre_m(self) -> torch.Tensor:
        return (self._centres_m[:, :, 0] * self._share).sum(dim=1)  # not @, whose rounding depends on num_envs


class Arm(Sensor):
    """Position of the reacher's fingertip, as MuJoCo computed it in the last stage of the integrator.

    Attributes:
        to_target_m: Vector from the target to the fingertip, (num_envs, 3).
    """

    def __init__(self, env: Env) -> None:
        """Look up the bodies and the lengths of the links."""
        model, poses = env.sim.model, env.sim.view("xpos")
        self._tip, self._target = (poses[:, model.body(name).id] for name in ("fingertip", "target"))
        self._upper_m, self._lower_m = (float(model.body(name).pos[0]) for name in ("body1", "fingertip"))
        self._qpos = env.sim.qpos
        self.to_target_m = torch.zeros(env.num_envs, 3, device=env.device)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        torch.sub(self._tip, self._target, out=self.to_target_m)

    def reset(self, mask: torch.Tensor) -> None:
        # The bodies' poses are still those from before the reset: use the joint angles.
        shoulder, elbow, *target = self._qpos.unbind(dim=1)
        angle = shoulder + elbow
        x = self._upper_m * shoulder.cos() + self._lower_m * angle.cos() - target[0]
        y = self._upper_m * shoulder.sin() + self._lower_m * angle.sin() - target[1]
        write_rows(self.to_target_m, mask, torch.stack([x, y, torch.zeros_like(x)], dim=1))

    def state(self) -> dict[str, torch.Tensor]:
        return {"to_target_m": self.to_target_m}


def _kinematics(model: mjw.Model, data: mjw.Data) -> None:
    mjw.kinematics(model, data)
    mjw.com_pos(model, data)
    mjw.com_vel(model, data)
