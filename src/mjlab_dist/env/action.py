"""Base class of action terms: a block of the policy's output, and the actuators that it drives."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import mujoco
import torch

from mjlab_dist.config import ActionConfig
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed

if TYPE_CHECKING:
    import mujoco_warp as mjw

    from mjlab_dist.env.env import Env


_ON_JOINTS = {int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)}
"""Types of transmissions that drive a joint."""


@dataclasses.dataclass(frozen=True)
class ActionBlock:
    """A block of ``env.actions`` and its actuators. The constructor of the block's class receives this object."""

    name: str
    """Name of the block in the config."""
    config: ActionConfig
    """Its config."""
    actuators: tuple[str, ...]
    """Names of its actuators, in the order of ``config.actuators``."""
    ids: tuple[int, ...]
    """Ids of its actuators in the model."""

    @property
    def flag(self) -> str:
        """The flag of the block, for messages."""
        return f"--env.actions.{self.name}"


class JointColumns(NamedTuple):
    """Columns of the joints that a block's actuators drive, in the order of the actuators."""

    qpos: Columns
    """Columns of ``qpos``."""
    qvel: Columns
    """Columns of ``qvel``."""


class Action(Term):
    """A block of actions that drives actuators.

    The block's part of the policy's output is clipped and delayed, and becomes ``values`` = offset + scale * action.
    Subclasses turn the values into actuator inputs: with :meth:`apply` once per control step, or with :meth:`substep`
    once per physics step.

    Attributes:
        is_direct: Whether the values are the inputs of the actuators. If so, the env writes offset + scale * action
            directly to ``env.sim.ctrl``: the class needs no :meth:`apply`, and ``values`` stays 0.
        has_joint_positions: Whether the values are positions of the joints that the actuators drive. If so,
            ``offset="home"`` is allowed.
        block: Name, config and actuators of the block.
        names: Names of the actions. Their number is the width of the block.
        values: Values of this step, (num_envs, len(names)); the tensor is updated in place.
        scale: Factors, (len(names),).
        offset: Value that an action of 0 gives, (len(names),).
    """

    is_direct = False
    has_joint_positions = False

    def __init__(self, env: Env, block: ActionBlock) -> None:
        """Allocate the values.

        Args:
            env: The envs. Their sensors, commands and observations do not exist yet.
            block: Name, config and actuators of the block.

        Raises:
            UserError: If the scale or the offset in the config is not valid for these actions.
        """
        self.block = block
        self.names = tuple(self.action_names())
        self.values = torch.zeros(env.num_envs, len(self.names), device=env.device)
        self.scale = self.per_action(env, f"{block.flag}.scale", block.config.scale)
        offset = block.config.offset
        if offset == "home":
            self.offset = self._home(env)
        else:
            self.offset = self.per_action(env, f"{block.flag}.offset", offset)
        self._ctrl = env.sim.ctrl
        self._columns = Columns(block.ids, env.device)

    def action_names(self) -> Sequence[str]:
        """Return the names of the actions. By default, there is one action per actuator, with the actuator's name.

        The constructor calls this method after it has set ``block``. If the config gives scales or offsets by regular
        expressions, the expressions match these names.
        """
        return self.block.actuators

    def apply(self, env: Env) -> None:
        """Turn ``values`` into inputs of the block's actuators, once per control step, before the physics.

        Args:
            env: The envs, in the state at the start of the step.
        """

    def to_inputs(self) -> torch.nn.Module | None:
        """Return a module that maps values, (n, len(names)), to inputs of the block's actuators, (n, num_actuators).

        Exported policies contain it. Returns None if the inputs depend on more than the values.
        """
        return torch.nn.Identity() if self.is_direct else None

    def substep(self, model: mjw.Model, data: mjw.Data) -> None:
        """Launch Warp kernels that run before every physics step.

        The graph of the physics records these kernels and replays them, so the method must not allocate memory.
        ``data.qpos`` and ``data.qvel`` are up to date. Poses, the lengths of tendons and actuators, and sensor readings
        are those of the previous physics step.

        Args:
            model: MuJoCo Warp's model.
            data: MuJoCo Warp's data; write actuator inputs to ``data.ctrl``.
        """

    def send(self, inputs: torch.Tensor) -> None:
        """Set the inputs of the block's actuators.

        Args:
            inputs: (num_envs, num_actuators), in the order of ``block.actuators``.
        """
        self._columns.set(self._ctrl, inputs)

    def per_action(self, env: Env, flag: str, value: float | Mapping[str, float]) -> torch.Tensor:
        """Return a number per action, (len(names),), from one number or a mapping of regular expressions to numbers.

        Args:
            env: The envs.
            flag: The flag that holds the value, for messages.
            value: The number; or a mapping, in which the first expression that matches an action's name applies.

        Raises:
            UserError: If an expression matches no action, or an action matches no expression.
        """
        return torch.tensor(per_name(flag, value, self.names), dtype=torch.float32, device=env.device)

    def joints(self, env: Env) -> JointColumns:
        """Return the columns of the joints that the block's actuators drive.

        Args:
            env: The envs.

        Raises:
            UserError: If an actuator does not drive a hinge or slide joint.
        """
        ids = [_joint_of(env.sim.model, actuator) for actuator in self.block.ids]
        for name, joint in zip(self.block.actuators, ids, strict=True):
            if joint is None:
                raise UserError(
                    f"{self.block.flag}.actuators {name}: drives no hinge or slide joint, but "
                    f"{type(self).__name__} needs one; use another actuator or class"
                )
        model, found = env.sim.model, [joint for joint in ids if joint is not None]
        return JointColumns(
            Columns([int(model.jnt_qposadr[joint]) for joint in found], env.device),
            Columns([int(model.jnt_dofadr[joint]) for joint in found], env.device),
        )

    def _home(self, env: Env) -> torch.Tensor:
        flag, model = f"{self.block.flag}.offset home", env.sim.model
        if not self.has_joint_positions:
            raise UserError(f"{flag}: values of {type(self).__name__} are not positions of joints; use a number")
        home: list[float] = []
        for name, actuator in zip(self.block.actuators, self.block.ids, strict=True):
            joint = _joint_of(model, actuator)
            if joint is None:
                raise UserError(f"{flag}: actuator {name} drives no hinge or slide joint; use a number")
            home.append(float(env.reference.qpos[0, model.jnt_qposadr[joint]]))
        return torch.tensor(home, dtype=torch.float32, device=env.device)


def per_name(flag: str, value: float | Mapping[str, float], names: Sequence[str]) -> list[float]:
    """Return a number for each name, from one number or from a mapping of regular expressions to numbers.

    Args:
        flag: The flag that holds the value, for messages.
        value: The number; or a mapping, in which the first expression that matches a name applies.
        names: The names.

    Raises:
        UserError: If a number is NaN, an expression matches no name, or a name matches no expression.
    """
    numbers = value if isinstance(value, Mapping) else {".*": value}
    for pattern, number in numbers.items():
        if math.isnan(number):
            raise UserError(f"{flag} {number}: is not a number")
        try:
            is_used = any(re.fullmatch(pattern, name) for name in names)
        except re.error as error:
            raise UserError(f"{flag} {pattern}: is not a regular expression: {error}") from error
        if not is_used and isinstance(value, Mapping):
            raise UserError(f"{flag} {pattern}: matches none of {', '.join(names)}")
    chosen = [
        next((number for pattern, number in numbers.items() if re.fullmatch(pattern, name)), None) for name in names
    ]
    missing = [name for name, number in zip(names, chosen, strict=True) if number is None]
    if missing:
        raise UserError(f"{flag} {' '.join(numbers)}: has no number for {listed(missing)}; add one")
    return [number for number in chosen if number is not None]


def _joint_of(model: mujoco.MjModel, actuator: int) -> int | None:
    """Return the hinge or slide joint that an actuator drives; None if it drives something else."""
    kind, joint = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    return joint if kind in _ON_JOINTS and model.jnt_type[joint] >= int(mujoco.mjtJoint.mjJNT_SLIDE) else None
