"""Action terms that compute the torques of motors in every physics step, for actuators whose input is a torque."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp

from mjlab_dist.env.actions import Action, ActionBlock, per_name
from mjlab_dist.env.columns import write_rows
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import motor_kernels
from mjlab_dist.mdp.data_files import read_layers

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env
    from mjlab_dist.sim import Limits


class DcMotor(Action):
    """DC motor: a PD controller tracks the target joint positions, within the limits of the motor.

    The values of the block are the targets. torque = stiffness * (target - position) - damping * velocity, between
    effort_limit * (-1 - velocity / velocity_limit) and effort_limit * (1 - velocity / velocity_limit), and with a
    magnitude of at most effort_limit. The torque is computed in every physics step. Motors of ``sim.actuators`` follow
    the same law, and need fewer operations. Use this class only if the targets are delayed by a number of physics
    steps.

    The actuators must be torque or force motors: ``<motor>`` of the MJCF, or ``sim.actuators`` of kind effort. The
    limits apply to the torque that this class commands.
    """

    has_joint_positions = True

    def __init__(
        self,
        env: Env,
        block: ActionBlock,
        *,
        stiffness: float | dict[str, float],
        damping: float | dict[str, float],
        effort_limit: float | dict[str, float] | None = None,
        velocity_limit: float | dict[str, float] | None = None,
        delay: tuple[int, int] = (0, 0),
    ) -> None:
        """Look up the joints, and allocate the delayed targets.

        Args:
            env: The envs.
            block: The block; its actuators are torque motors of hinge or slide joints.
            stiffness: Stiffness in N m/rad (slide joints: N/m): one number, or a mapping of regular expressions to
                numbers.
            damping: Damping in N m s/rad (slide joints: N s/m), in the same form.
            effort_limit: Maximum torque at rest in N m (slide joints: force in N), in the same form. None: no limit.
            velocity_limit: No-load speed in rad/s (slide joints: m/s), in the same form. None: no limit.
            delay: Minimum and maximum delay of the targets, in physics steps. Each env samples its delay at the start
                of an episode.

        Raises:
            UserError: If an actuator is not a torque motor, or a number is out of range.
        """
        super().__init__(env, block)
        flag = f"{block.flag}.params"
        numbers = {
            "stiffness": (stiffness, 0.0),
            "damping": (damping, 0.0),
            "effort_limit": (math.inf if effort_limit is None else effort_limit, 1e-9),
            "velocity_limit": (math.inf if velocity_limit is None else velocity_limit, 1e-9),
        }
        laws = [_at_least(f"{flag}.{name.replace('_', '-')}", *one, self.names) for name, one in numbers.items()]
        if any(math.isinf(effort) and math.isfinite(speed) for effort, speed in zip(*laws[2:], strict=True)):
            raise UserError(f"{flag}.velocity-limit: needs the torque at zero speed, too; set effort_limit")
        if not 0 <= delay[0] <= delay[1]:
            raise UserError(f"{flag}.delay {delay[0]} {delay[1]}: give the minimum first; both must be 0 or more")
        joints = self.joints(env)
        _refuse_unless_torque(self, env)
        # Targets of the latest physics steps minus the offset, newest first. A reset sets them to 0.
        self._targets = torch.zeros(env.num_envs, 1 + delay[1], len(self.names), device=env.device)
        self._lag = torch.full((env.num_envs,), delay[0], dtype=torch.int32, device=env.device)
        self._delay = delay
        with wp.ScopedDevice(env.device):
            ids = [wp.array(one, dtype=int) for one in (joints.qpos.ids, joints.qvel.ids, block.ids)]
            constants = [wp.array(one, dtype=float) for one in laws]
        tensors = (self.values, self.offset, self._lag, self._targets)
        self._inputs: list[Any] = [*ids, *constants, *(wp.from_torch(tensor) for tensor in tensors)]

    def substep(self, model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG002 (every program takes them)
        wp.launch(motor_kernels.drive_dc, self.values.shape, [data.qpos, data.qvel, *self._inputs], [data.ctrl])

    def reset(self, mask: torch.Tensor) -> None:
        low, high = self._delay
        if low < high:
            write_rows(self._lag, mask, torch.randint_like(self._lag, low, high + 1))

    def cleared(self) -> list[torch.Tensor]:
        return [self._targets]

    def state(self) -> dict[str, torch.Tensor]:
        return {"targets": self._targets, "lag": self._lag}

    def limits(self) -> dict[str, Limits]:
        return {"lag": (0, self._delay[1])}


class LearnedMotor(Action):
    """Motor whose torque is the output of a neural network, as in published actuator networks.

    The values of the block are target positions. The same network is evaluated for each joint. It maps a history of
    position errors (target - position) and velocities to a torque. It is a chain of linear layers with an activation
    between them. Unless ``velocities_first`` is set, its inputs are first the errors, then the velocities, each in the
    order of ``history``. It is evaluated in every physics step.

    The actuators must be torque or force motors: ``<motor>`` of the MJCF, or ``sim.actuators`` of kind effort. At the
    start of an episode, the history is 0.

    If an actuator drives a tendon, the positions of all actuators of the block are MuJoCo's ``actuator_length`` (length
    times gear) of the previous physics step, in m. With gear -1, a motor pulls, and its position increases as the
    tendon becomes shorter. Tendons need ``forward_before_observation``; otherwise, an episode would start with the
    lengths of the previous episode.
    """

    has_joint_positions = True

    def __init__(
        self,
        env: Env,
        block: ActionBlock,
        *,
        file: str,
        activation: Literal["softsign", "elu", "relu", "tanh"],
        history: tuple[int, ...] = (0, 1, 2),
        velocities_first: bool = False,
        position_scale: float = 1.0,
        velocity_scale: float = 1.0,
        effort_scale: float = 1.0,
        effort_limit: float | None = None,
    ) -> None:
        """Read the weights, and allocate the history.

        Args:
            env: The envs.
            block: The block; its actuators are torque motors of hinge or slide joints, or force motors of tendons.
            file: Path of the network, or ``package.module:file``. The file is a state dict that ``torch.save`` wrote:
                the weight and the bias of each layer, from first to last.
            activation: Activation between the layers.
            history: Ages of the inputs, in physics steps; 0 is the current step.
            velocities_first: Whether the velocities come before the errors.
            position_scale: Factor that the errors are multiplied by, in 1/rad.
            velocity_scale: Factor that the velocities are multiplied by, in s/rad.
            effort_scale: Torque per unit of the network's output, in N m.
            effort_limit: Maximum torque in N m. None: no limit.

        Raises:
            UserError: If there is no such file, its layers have the wrong shapes, an actuator is not a torque motor, or
                an actuator drives a tendon without ``forward_before_observation``.
        """
        super().__init__(env, block)
        flag = f"{block.flag}.params"
        if not history or min(history) < 0:
            given = " ".join(map(str, history))
            raise UserError(f"{flag}.history {given}: give at least one age in physics steps, none below 0")
        layers = read_layers(f"{flag}.file {file}", file, 2 * len(history))
        columns = self._find_positions(env)
        # State: errors and velocities of the latest physics steps, newest first
        shape = (env.num_envs, 1 + max(history), len(self.names))
        self._errors, self._velocities = torch.zeros(2, *shape, device=env.device)
        # Constants, and buffers for the inputs and outputs of the layers: one row per env and joint
        self._rows = env.num_envs * len(self.names)
        with wp.ScopedDevice(env.device):
            ids = [wp.array(one, dtype=int) for one in columns]
            self._ids = wp.array(block.ids, dtype=int)
            ages = wp.array(history, dtype=int)
            self._layers = [(wp.array(weight.numpy()), wp.array(bias.numpy())) for weight, bias in layers]
            widths = [2 * len(history), *(len(bias) for _, bias in layers)]
            self._memory = [wp.zeros((self._rows, width), dtype=float) for width in widths]
        tensors = [wp.from_torch(tensor) for tensor in (self.values, self._errors, self._velocities)]
        scales = [position_scale, velocity_scale]
        self._inputs: list[Any] = [*ids, tensors[0], ages, *scales, velocities_first, *tensors[1:]]
        self._activation = getattr(motor_kernels, activation.upper())
        self._effort = (effort_scale, math.inf if effort_limit is None else effort_limit)

    def _find_positions(self, env: Env) -> list[tuple[int, ...]]:
        """Return columns of positions and velocities, of actuators if one of them drives a tendon, else of joints."""
        block, model = self.block, env.sim.model
        # Fields of MuJoCo's data that the next physics step reads, for state(); none without tendons
        self._lengths: dict[str, torch.Tensor] = {}
        if not (model.actuator_trntype[list(block.ids)] == mujoco.mjtTrn.mjTRN_TENDON).any():
            joints = self.joints(env)
            _refuse_unless_torque(self, env)
            return [joints.qpos.ids, joints.qvel.ids]
        if not env.cfg.sim.forward_before_observation:
            raise UserError(
                f"{block.flag}.actuators {' '.join(block.actuators)}: the length of a tendon is known at the start of "
                "an episode only with --env.sim.forward-before-observation; set it"
            )
        self._lengths = {name: env.sim.view(name) for name in ("actuator_length", "actuator_velocity")}
        return [block.ids, block.ids]

    def substep(self, model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG002 (every program takes them)
        shape, memory = self.values.shape, self._memory
        state = [data.actuator_length, data.actuator_velocity] if self._lengths else [data.qpos, data.qvel]
        wp.launch(motor_kernels.push_history, shape, [*state, *self._inputs], [memory[0]])
        for i, (weight, bias) in enumerate(self._layers):
            kind = motor_kernels.LINEAR if i + 1 == len(self._layers) else self._activation
            wp.launch(
                motor_kernels.apply_layer, (self._rows, len(bias)), [memory[i], weight, bias, kind], [memory[i + 1]]
            )
        wp.launch(motor_kernels.send_torques, shape, [memory[-1], self._ids, *self._effort], [data.ctrl])

    def cleared(self) -> list[torch.Tensor]:
        return [self._errors, self._velocities]

    def state(self) -> dict[str, torch.Tensor]:
        return {"errors": self._errors, "velocities": self._velocities, **self._lengths}


def _at_least(flag: str, value: float | dict[str, float], least: float, names: tuple[str, ...]) -> list[float]:
    numbers = per_name(flag, value, names)
    for number in numbers:
        if number < least:
            raise UserError(f"{flag} {number}: must be {'positive' if least else '0 or more'}")
    return numbers


def _refuse_unless_torque(term: Action, env: Env) -> None:
    """Raise if the input of an actuator is not the torque on its joint. The check computes the forces in one state."""
    model, block = env.sim.model, term.block
    data = mujoco.MjData(model)
    joints = term.joints(env)
    data.qpos[list(joints.qpos.ids)] += 0.3
    data.qvel[list(joints.qvel.ids)] = 0.7
    data.ctrl[list(block.ids)] = 0.01
    mujoco.mj_forward(model, data)
    ids = list(block.ids)
    is_torque = np.isclose(data.actuator_force[ids], 0.01) & np.isclose(data.actuator_velocity[ids], 0.7)
    for name, fits in zip(block.actuators, is_torque, strict=True):
        if not fits:
            raise UserError(
                f"{block.flag}.actuators {name}: is not a torque motor with gear 1, but {type(term).__name__} needs "
                "one; use <motor> with gear 1, or sim.actuators of kind effort"
            )
