"""Terms of Gymnasium's MuJoCo v5 tasks (gymnasium/envs/mujoco/*_v5.py), over all envs at once."""

from __future__ import annotations

import math

import mujoco_warp as mjw
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import uniform, write_rows
from mjlab_dist.env.term import Sensor, Term

# Observations


def positions(env: Env, skip: int = 0) -> torch.Tensor:
    """All joint positions but the first ``skip``, in m and rad; (num_envs, nq - skip)."""
    return env.sim.qpos[:, skip:]


def velocities(env: Env) -> torch.Tensor:
    """All joint velocities, in m/s and rad/s; (num_envs, nv)."""
    return env.sim.qvel


def wrenches(env: Env, sensor: str) -> torch.Tensor:
    """Torque and force of contacts on every body but the world, in N m and N; (num_envs, 6 * (nbody - 1))."""
    return env.sensor(sensor, Wrenches).cfrc_ext[:, 1:].flatten(1)


def inertias(env: Env, sensor: str) -> torch.Tensor:
    """Inertia and mass of every body but the world, about the centre of mass of its tree; (num_envs, 10 * (nbody - 1))."""
    return env.sensor(sensor, Bodies).cinert[:, 1:].flatten(1)


def body_velocities(env: Env, sensor: str) -> torch.Tensor:
    """Angular and linear velocity of every body but the world, in rad/s and m/s; (num_envs, 6 * (nbody - 1))."""
    return env.sensor(sensor, Bodies).cvel[:, 1:].flatten(1)


def actuator_torques(env: Env, sensor: str) -> torch.Tensor:
    """Torques of actuators on the joints behind the floating base, in N m; (num_envs, nv - 6)."""
    return env.sensor(sensor, Bodies).qfrc_actuator[:, 6:]


def arm_direction(env: Env) -> torch.Tensor:
    """Cosines, then sines of the two angles of the reacher's arm; (num_envs, 4)."""
    angles = env.sim.qpos[:, :2]
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def arm_velocity(env: Env) -> torch.Tensor:
    """Velocities of the two joints of the reacher's arm, in rad/s; (num_envs, 2)."""
    return env.sim.qvel[:, :2]


def to_target(env: Env, sensor: str) -> torch.Tensor:
    """From the reacher's target to its fingertip, in m; (num_envs, 2)."""
    return env.sensor(sensor, Arm).to_target_m[:, :2]


# Rewards


class Speed(Term):
    """Speed along x over the last step, in m/s, by what a joint has moved; (num_envs,)."""

    def __init__(self, env: Env, joint: str = "rootx") -> None:
        """Look up the joint."""
        self._position = env.sim.qpos[:, env.joints[joint].qpos.start]
        self._before_m = self._position.clone()

    def __call__(self, env: Env) -> torch.Tensor:
        """Measure; call it once a step."""
        speed = (self._position - self._before_m) / env.step_dt_s
        self._before_m.copy_(self._position)
        return speed

    def reset(self, mask: torch.Tensor) -> None:
        """Measure from the start state on."""
        write_rows(self._before_m, mask, self._position)

    def state(self) -> dict[str, torch.Tensor]:
        """Where the step started."""
        return {"before_m": self._before_m}


class BodySpeed(Term):
    """Speed along x over the last step, in m/s, by what a body with a free joint has moved; (num_envs,).

    As Gymnasium's ant it reads the body's pose, which a step leaves at the integrator's last stage, not the joint.
    """

    def __init__(self, env: Env, body: str = "torso", joint: str = "root") -> None:
        """Look up the body."""
        self._pose_m = env.sim.view("xpos")[:, env.sim.model.body(body).id, 0]
        self._start_m = env.sim.qpos[:, env.joints[joint].qpos.start]
        self._before_m = self._start_m.clone()

    def __call__(self, env: Env) -> torch.Tensor:
        """Measure; call it once a step."""
        speed = (self._pose_m - self._before_m) / env.step_dt_s
        self._before_m.copy_(self._pose_m)
        return speed

    def reset(self, mask: torch.Tensor) -> None:
        """Measure from the start state on."""
        write_rows(self._before_m, mask, self._start_m)

    def state(self) -> dict[str, torch.Tensor]:
        """Where the step started."""
        return {"before_m": self._before_m}


def mass_speed(env: Env, sensor: str) -> torch.Tensor:
    """Speed of the centre of mass along x over the last step, in m/s; (num_envs,)."""
    return env.sensor(sensor, Bodies).speed_m_s


def healthy(
    env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], most: float = math.inf
) -> torch.Tensor:
    """1 where the robot is healthy, else 0; (num_envs,). A number that is not finite is not healthy.

    Args:
        env: The envs.
        first: Joint position that the first bounds are of.
        low: Bounds that this and the following joint positions have to exceed, in m and rad.
        high: Bounds that they must not reach.
        most: What all positions but the first two and all velocities have to be less than, either way.
    """
    return is_healthy(env, first, low, high, most).float()


def control_cost(env: Env) -> torch.Tensor:
    """Sum of the squares of the actuators' inputs, before MuJoCo clamps them; (num_envs,)."""
    return env.sim.ctrl.square().sum(dim=1)


def wrench_cost(env: Env, sensor: str, most: float = math.inf, each: float = math.inf) -> torch.Tensor:
    """Sum of the squares of all bodies' wrenches, (num_envs,).

    Args:
        env: The envs.
        sensor: The sensor of wrenches.
        most: What the sum is clipped to.
        each: What every number is clipped to, either way, in N m and N.
    """
    return env.sensor(sensor, Wrenches).cfrc_ext.flatten(1).clamp(-each, each).square().sum(dim=1).clamp(max=most)


def distance(env: Env, sensor: str) -> torch.Tensor:
    """Distance of the reacher's fingertip from its target, in m; (num_envs,)."""
    return env.sensor(sensor, Arm).to_target_m.norm(dim=1)


# Terminations


def unhealthy(
    env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], most: float = math.inf
) -> torch.Tensor:
    """The contrary of :func:`healthy`."""
    return ~is_healthy(env, first, low, high, most)


def is_healthy(env: Env, first: int, low: tuple[float, ...], high: tuple[float, ...], most: float) -> torch.Tensor:
    """See :func:`healthy`; (num_envs,) of bool."""
    bounded = env.sim.qpos[:, first : first + len(low)].unbind(dim=1)
    fine = torch.ones_like(env.terminated)
    for position, least, greatest in zip(bounded, low, high, strict=True):
        fine &= (position > least) & (position < greatest)
    if most < math.inf:
        fine &= (env.sim.qpos[:, 2:].abs() < most).all(dim=1) & (env.sim.qvel.abs() < most).all(dim=1)
    return fine


# Start states


def draw_state(env: Env, mask: torch.Tensor, position: float, velocity: float = 0.0, velocity_std: float = 0.0) -> None:
    """Move every joint away from the start state.

    Args:
        env: The envs.
        mask: Envs in which an episode starts, (num_envs,) of bool.
        position: Half the width of uniform noise on every joint position (a quaternion's numbers included), in m and rad.
        velocity: Half the width of uniform noise on every joint velocity, in m/s and rad/s.
        velocity_std: Standard deviation of normal noise on every joint velocity, in m/s and rad/s.
    """
    qpos, qvel = env.reference
    write_rows(env.sim.qpos, mask, uniform(qpos, -position, position).add_(qpos))
    noise = uniform(qvel, -velocity, velocity) if velocity else torch.empty_like(qvel).normal_(std=velocity_std)
    write_rows(env.sim.qvel, mask, noise.add_(qvel))


def draw_target(env: Env, mask: torch.Tensor, radius_m: float) -> None:
    """Put the reacher's target to rest anywhere on a disk around its shoulder."""
    drawn = torch.rand(env.num_envs, 2, device=env.device)
    radius, angle = radius_m * drawn[:, 0].sqrt(), 2.0 * math.pi * drawn[:, 1]
    write_rows(env.sim.qpos[:, 2:], mask, torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1))
    write_rows(env.sim.qvel[:, 2:], mask, 0.0)


# Sensors


class Wrenches(Sensor):
    """External torque and force on every body, as Gymnasium has MuJoCo compute them after each step.

    Attributes:
        cfrc_ext: ``mujoco.MjData.cfrc_ext``, (num_envs, nbody, 6), in N m and N about the centre of mass of the body's tree: of
            the integrator's last stage, and 0 when an episode starts.
    """

    def __init__(self, env: Env) -> None:
        """Record MuJoCo's Newton-Euler pass."""
        self.cfrc_ext = env.sim.view("cfrc_ext")
        self._compute = env.sim.record(mjw.rne_postconstraint)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        """Compute the wrenches."""
        self._compute()

    def reset(self, mask: torch.Tensor) -> None:
        """Nothing has touched yet."""
        write_rows(self.cfrc_ext, mask, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        """The wrenches."""
        return {"cfrc_ext": self.cfrc_ext}


class Bodies(Sensor):
    """Inertias, velocities and the centre of mass, as a step of MuJoCo leaves them: at the integrator's last stage.

    Where an episode starts they are computed anew, as Gymnasium does.

    Attributes:
        cinert: ``mujoco.MjData.cinert``, (num_envs, nbody, 10), in kg m2, kg m and kg.
        cvel: ``mujoco.MjData.cvel``, (num_envs, nbody, 6), in rad/s and m/s.
        qfrc_actuator: Actuators' torques, (num_envs, nv), in N m; 0 when an episode starts.
        speed_m_s: Of the centre of mass along x over the last step, (num_envs,).
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
        """Take over what the step has left."""
        for name, view in self._views.items():
            getattr(self, name).copy_(view)
        centre_m = self._mass_centre_m()
        self.speed_m_s.copy_((centre_m - self._centre_m) / env.step_dt_s)
        self._centre_m.copy_(centre_m)

    def reset(self, mask: torch.Tensor) -> None:
        """Compute the start state's."""
        self._compute()
        write_rows(self.cinert, mask, self._views["cinert"])
        write_rows(self.cvel, mask, self._views["cvel"])
        write_rows(self.qfrc_actuator, mask, 0.0)
        write_rows(self.speed_m_s, mask, 0.0)
        write_rows(self._centre_m, mask, self._mass_centre_m())

    def state(self) -> dict[str, torch.Tensor]:
        """All of it."""
        names = ("cinert", "cvel", "qfrc_actuator", "speed_m_s")
        return {**{name: getattr(self, name) for name in names}, "centre_m": self._centre_m}

    def _mass_centre_m(self) -> torch.Tensor:
        return self._centres_m[:, :, 0] @ self._share


class Arm(Sensor):
    """Where the reacher's fingertip is, as a step of MuJoCo leaves it: at the integrator's last stage.

    Attributes:
        to_target_m: From the target to the fingertip, (num_envs, 3).
    """

    def __init__(self, env: Env) -> None:
        """Look up bodies and the lengths of the links."""
        model, poses = env.sim.model, env.sim.view("xpos")
        self._tip, self._target = (poses[:, model.body(name).id] for name in ("fingertip", "target"))
        self._upper_m, self._lower_m = (float(model.body(name).pos[0]) for name in ("body1", "fingertip"))
        self._qpos = env.sim.qpos
        self.to_target_m = torch.zeros(env.num_envs, 3, device=env.device)

    def update(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        """Measure."""
        torch.sub(self._tip, self._target, out=self.to_target_m)

    def reset(self, mask: torch.Tensor) -> None:
        """Compute it from the angles: poses are those from before the reset."""
        shoulder, elbow, *target = self._qpos.unbind(dim=1)
        angle = shoulder + elbow
        x = self._upper_m * shoulder.cos() + self._lower_m * angle.cos() - target[0]
        y = self._upper_m * shoulder.sin() + self._lower_m * angle.sin() - target[1]
        write_rows(self.to_target_m, mask, torch.stack([x, y, torch.zeros_like(x)], dim=1))

    def state(self) -> dict[str, torch.Tensor]:
        """What was measured."""
        return {"to_target_m": self.to_target_m}


def _kinematics(model: mjw.Model, data: mjw.Data) -> None:
    mjw.kinematics(model, data)
    mjw.com_pos(model, data)
    mjw.com_vel(model, data)
