"""Event terms: start states, pushes and wrenches. A term changes only the envs that its argument ``mask`` selects."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import numpy as np
import torch

from mjlab_dist.env.columns import Bounds, Columns, uniform, write_rows
from mjlab_dist.env.term import Range, Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import kernels
from mjlab_dist.sim.names import element_names, find_names
from mjlab_dist.sim.scene import find_file

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


def draw_joint_position(env: Env, mask: torch.Tensor, joint: str, low: float, high: float) -> None:
    """Sample the position of a slide or hinge joint uniformly from [low, high], in m or rad."""
    column = env.sim.qpos[:, env.joints[joint].qpos]
    write_rows(column, mask, uniform(column, low, high))


def draw_velocities(env: Env, mask: torch.Tensor, std: float) -> None:
    """Sample all joint velocities from a normal distribution with mean 0; std is in m/s and rad/s."""
    write_rows(env.sim.qvel, mask, torch.randn_like(env.sim.qvel).mul_(std))


class DrawJoints(Term):
    """Randomize hinge and slide joints uniformly around the start state, within the joints' limits."""

    schedulable = ("position", "velocity")

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
            entity: Entity that the joints belong to; None for all.
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

    schedulable = ("x_m", "y_m", "z_m", "roll_rad", "pitch_rad", "yaw_rad", "linear_m_s", "angular_rad_s")

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
        self._bounds = Bounds(ranges, env.device)
        arrays = [self._mask, self._drawn, self._bounds.low, self._bounds.high, home, env.origins, pose, velocity]
        self._draw = env.sim.record_launch(kernels.draw_root, env.num_envs, arrays)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every event takes the env)
        self._mask.copy_(mask)
        self._drawn.uniform_()
        self._bounds.update()
        self._draw()


class Push(Term):
    """Push a floating base: add a random velocity to its current one."""

    schedulable = ("linear_m_s", "angular_rad_s")

    def __init__(
        self, env: Env, linear_m_s: Range = (-0.5, 0.5), angular_rad_s: Range = (0.0, 0.0), joint: str = "root"
    ) -> None:
        """Look up the joint.

        Args:
            env: The envs.
            linear_m_s: Range of each component of the added velocity, along the world's x and y axes.
            angular_rad_s: Range of each component of the added angular velocity, about the base's axes.
            joint: The body's free joint.
        """
        self._qvel = env.joints[joint].qvel
        ranges = [linear_m_s, linear_m_s, (0.0, 0.0), *[angular_rad_s] * 3]
        self._bounds = Bounds(ranges, env.device)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        velocity = env.sim.qvel[:, self._qvel]
        self._bounds.update()
        drawn = torch.lerp(self._bounds.low, self._bounds.high, torch.rand_like(velocity))
        velocity.add_(drawn.mul_(mask.unsqueeze(1)))


class Wrench(Term):
    """Apply a random force and torque to bodies for a random time. Use it at intervals, with ``every(low_s, high_s)``.

    Attributes:
        left_s: Time in s until the wrench ends, (num_envs,); 0 if no wrench is applied.
    """

    schedulable = ("force_n", "torque_n_m", "duration_s")

    def __init__(
        self,
        env: Env,
        *,
        bodies: tuple[str, ...],
        force_n: Range = (0.0, 0.0),
        torque_n_m: Range = (0.0, 0.0),
        duration_s: Range = (0.1, 0.1),
        entity: str | None = None,
    ) -> None:
        """Look up the bodies.

        Args:
            env: The envs.
            bodies: Regular expressions that match the names of the bodies. Each body has its own wrench.
            force_n: Range of each component of the force at the center of mass, in the world frame.
            torque_n_m: Range of each component of the torque, in the world frame.
            duration_s: Range of the duration.
            entity: Entity that the bodies belong to; None for all.
        """
        names = element_names(env.sim.model, "body", entity, env.cfg.sim.entities)
        ids = find_names("bodies", bodies, names)
        self._bodies = Columns(ids, env.device)
        self._applied = env.sim.view("xfrc_applied")
        self._bounds = Bounds([force_n] * 3 + [torque_n_m] * 3, env.device)
        self._duration_s = duration_s
        self.left_s = torch.zeros(env.num_envs, device=env.device)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        # Wrenches that end
        self.left_s.sub_(env.step_dt_s)
        applied = self._bodies.of(self._applied)
        over = self.left_s < 0.5 * env.step_dt_s  # round to the nearest step
        kept = torch.where(over.view(-1, 1, 1), 0.0, applied)
        self.left_s.masked_fill_(over, 0.0)
        # Wrenches that start
        write_rows(self.left_s, mask, uniform(self.left_s, *self._duration_s))
        self._bounds.update()
        drawn = torch.lerp(self._bounds.low, self._bounds.high, torch.rand_like(kept))
        self._bodies.set(self._applied, torch.where(mask.view(-1, 1, 1), drawn, kept))

    def cleared(self) -> list[torch.Tensor]:
        return [self.left_s]  # the reset of the physics sets the applied forces to 0

    def state(self) -> dict[str, torch.Tensor]:
        return {"left_s": self.left_s}


class DrawStates(Term):
    """Start each episode in a random state from a file, such as a file with states of earlier episodes."""

    def __init__(self, env: Env, file: str) -> None:
        """Read the states.

        Args:
            env: The envs.
            file: Path of the file, or ``package.module:file``. The file is an npz file with the arrays ``qpos``,
                (states, nq), and ``qvel``, (states, nv), or an npy file with one array of both, (states, nq + nv). The
                order and the units are those of MuJoCo. On terrain, positions of free joints are relative to the env's
                origin.

        Raises:
            UserError: If there is no such file, or its arrays have the wrong shapes.
        """
        self._qpos, self._qvel = (torch.from_numpy(states).to(env.device) for states in _read_states(env, file))
        free = [joint.qpos.start for joint in env.joints.values() if joint.is_free] if env.terrain is not None else []
        self._positions = [slice(start, start + 3) for start in free]
        self._index = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        self._index.random_(len(self._qpos))
        qpos = self._qpos.index_select(0, self._index)
        for columns in self._positions:
            qpos[:, columns] += env.origins
        write_rows(env.sim.qpos, mask, qpos)
        write_rows(env.sim.qvel, mask, self._qvel.index_select(0, self._index))


def _read_states(env: Env, file: str) -> list[np.ndarray]:
    flag, nq, nv = f"states {file}", env.sim.model.nq, env.sim.model.nv
    path = find_file(flag, file)
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            with loaded:
                loaded = {name: np.asarray(loaded[name]) for name in ("qpos", "qvel")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{flag}: is neither an npz file with the arrays qpos and qvel, nor an npy file; write it with numpy.savez "
            "or numpy.save"
        ) from error
    if isinstance(loaded, np.ndarray):
        if loaded.ndim != 2 or loaded.shape[1] != nq + nv:
            raise UserError(
                f"{flag}: has the shape {loaded.shape}; it must be (states, {nq + nv}), {nq} positions and then {nv} "
                "velocities"
            )
        loaded = {"qpos": loaded[:, :nq], "qvel": loaded[:, nq:]}
    num_states = loaded["qpos"].shape[0] if loaded["qpos"].ndim else 0
    for name, width in (("qpos", nq), ("qvel", nv)):
        states = loaded[name]
        if states.dtype.kind not in "fiu":
            raise UserError(f"{flag}: {name} has the type {states.dtype}; write it with numbers, such as float32")
        if states.shape != (num_states, width) or not num_states:
            raise UserError(
                f"{flag}: {name} has the shape {states.shape}; it must be (states, {width}), with equally many states "
                "in qpos and qvel"
            )
        if not np.isfinite(states).all():
            raise UserError(f"{flag}: {name} contains numbers that are not finite; remove these states")
    return [loaded[name].astype(np.float32) for name in ("qpos", "qvel")]
