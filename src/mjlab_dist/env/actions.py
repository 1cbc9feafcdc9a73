"""Base class of action terms, and the conversion of the policy's output to actuator inputs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import mujoco
import torch
import warp as wp

from mjlab_dist.config import ActionConfig
from mjlab_dist.env import kernels
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError, listed

if TYPE_CHECKING:
    import mujoco_warp as mjw

    from mjlab_dist.env.binding import Binder
    from mjlab_dist.env.env import Env
    from mjlab_dist.sim import Limits

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
        ids = [joint_of(env.sim.model, actuator) for actuator in self.block.ids]
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
            joint = joint_of(model, actuator)
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


def joint_of(model: mujoco.MjModel, actuator: int) -> int | None:
    """Return the hinge or slide joint that an actuator drives; None if it drives something else."""
    kind, joint = int(model.actuator_trntype[actuator]), int(model.actuator_trnid[actuator, 0])
    return joint if kind in _ON_JOINTS and model.jnt_type[joint] >= int(mujoco.mjtJoint.mjJNT_SLIDE) else None


class Actions:
    """The blocks of actions. Each block gets values = offset + scale * clip(action), delayed by ``lag`` steps.

    Attributes:
        terms: The term of each block, in the order of the blocks in the policy's output.
        names: Name of each action: the name of its actuator, or ``<block>.<name>`` if the action is not named after
            an actuator.
        actions: The policy's latest output, (num_envs, num_actions).
        previous: The output before that, (num_envs, num_actions).
        sent: Clipped outputs of the latest steps, newest first, (num_envs, steps, num_actions).
        lag: Delay of each action in steps, (num_envs, num_actions) of int64.
        next_lag: The delay that was drawn last. With jitter, ``lag`` grows toward it by at most 1 per step. If
            ``next_lag`` is lower than ``lag``, ``lag`` becomes equal to it at once.
    """

    def __init__(self, blocks: Mapping[str, ActionConfig], env: Env, binder: Binder) -> None:
        """Look up the actuators, make the terms and record the kernels."""
        # Terms
        found = list(_find(blocks, env.sim.model))
        self.terms = terms = tuple(
            binder.make_class(f"actions.{block.name}", block.config, Action, block) for block in found
        )
        configs = [term.block.config for term in terms for _ in term.names]
        self.names = [
            name if name in term.block.actuators else f"{term.block.name}.{name}"
            for term in terms
            for name in term.names
        ]
        self._applies = [binder.outside_of_graphs(term.apply) for term in terms if _overrides(term, "apply")]
        self._env = env

        # State
        shape, sim = (env.num_envs, len(configs)), env.sim
        max_lag = max((config.latency[1] for config in configs), default=0)
        self._has_latency = max_lag > 0
        self._has_jitter = any(config.latency_jitter > 0 for config in configs)
        self._given, self.actions, self.previous = torch.zeros(3, *shape, device=sim.device)
        self.sent = torch.zeros(sim.num_envs, 1 + max_lag, len(configs), device=sim.device)
        self.lag, self.next_lag = torch.zeros(2, *shape, dtype=torch.long, device=sim.device)
        self._drawn = torch.zeros(sim.num_envs, device=sim.device)

        # Recorded kernels
        self._record(terms)
        substeps = [term.substep for term in terms if _overrides(term, "substep")]
        if substeps:
            sim.before_substeps(substeps)

    def _record(self, terms: Sequence[Action]) -> None:
        sim, shape = self._env.sim, self.actions.shape
        # Constants: clip, scale, offset, addresses of the actuators, delays
        configs = [term.block.config for term in terms for _ in term.names]
        bounds = [config.clip or (-math.inf, math.inf) for config in configs]
        targets = _targets(terms, sim.ctrl)
        with wp.ScopedDevice(sim.device):
            constants = [
                wp.array([low for low, _ in bounds], dtype=float),
                wp.array([high for _, high in bounds], dtype=float),
                torch.cat([term.scale for term in terms]),
                torch.cat([term.offset for term in terms]),
                wp.array([action for action, _, _ in targets], dtype=int),
                wp.array([address for _, address, _ in targets], dtype=wp.uint64),
                wp.array([stride for _, _, stride in targets], dtype=wp.int64),
            ]
            lags = [
                wp.array([config.latency[0] for config in configs], dtype=int),
                wp.array([config.latency[1] - config.latency[0] for config in configs], dtype=int),
                wp.array([config.latency_jitter for config in configs], dtype=float),
            ]
        # Recorded kernels
        record = functools.partial(sim.record_launch, changes_state=False)
        sent = [self._given, *constants, self.lag, self.actions, self.previous, self.sent]
        self._send = record(kernels.send_actions, (sim.num_envs, len(targets)), sent)
        drawn = [sim.reset_mask, self._drawn, *lags, self.lag, self.next_lag]
        self._draw_lags = record(kernels.draw_lags, shape, drawn) if self._has_latency else None

    def apply(self, actions: torch.Tensor) -> None:
        """Set the actuator inputs of the next step from the policy's output.

        Args:
            actions: The policy's output, (num_envs, num_actions).
        """
        self._given.copy_(actions)
        self._send()
        for apply in self._applies:
            apply(self._env)

    def reset(self) -> None:
        """Draw the latency of actions in the envs of the latest reset; with jitter, also update it in other envs."""
        if self._draw_lags is not None:
            self._drawn.uniform_()
            self._draw_lags()

    def cleared(self) -> list[torch.Tensor]:
        """Return the tensors whose rows the env sets to 0 when an episode starts."""
        return [self.actions, self.previous, self.sent]

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the state of delayed actions: names and tensors, (num_envs, ...). Without latency, yield nothing."""
        if self._has_latency:
            yield "sent", self.sent
            yield "lag", self.lag
            if self._has_jitter:
                yield "next_lag", self.next_lag

    def limits(self) -> dict[str, Limits]:
        """Return the limits of the delays, which are indices of :attr:`sent`."""
        return dict.fromkeys(("lag", "next_lag"), (0, self.sent.shape[1] - 1))


def _find(blocks: Mapping[str, ActionConfig], model: mujoco.MjModel) -> Iterator[ActionBlock]:
    """Yield each block with the actuators that its patterns match."""
    known = [model.actuator(i).name for i in range(model.nu)]
    owners: dict[int, str] = {}
    for name, config in blocks.items():
        ids: list[int] = []
        for pattern in config.actuators:
            matches = [known.index(pattern)] if pattern in known else _matches(pattern, known)
            if not matches:
                raise UserError(
                    f"--env.actions.{name}.actuators {pattern}: matches no actuator; the model has {', '.join(known)}"
                )
            for actuator in matches:
                if actuator in owners:
                    raise UserError(
                        f"--env.actions.{name}.actuators {pattern}: {known[actuator]} is already driven by "
                        f"{owners[actuator]}; name each actuator once"
                    )
                owners[actuator] = name
            ids += matches
        yield ActionBlock(name, config, tuple(known[i] for i in ids), tuple(ids))


def _matches(pattern: str, names: list[str]) -> list[int]:
    try:
        return [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
    except re.error:
        return []


def _targets(terms: Sequence[Action], ctrl: torch.Tensor) -> list[tuple[int, int, int]]:
    """Return a tuple for each value that the kernel writes: index of the action, address of the value, and stride.

    The address is the address in the first env, and the stride is the number of bytes from one env to the next. For
    inputs of actuators that no block drives, the index is -1.
    """
    starts = itertools.accumulate((len(term.names) for term in terms), initial=0)
    driven = {actuator for term in terms for actuator in term.block.ids}
    columns = [(-1, ctrl[:, actuator]) for actuator in range(ctrl.shape[1]) if actuator not in driven]
    for start, term in zip(starts, terms, strict=False):
        values = [ctrl[:, actuator] for actuator in term.block.ids] if term.is_direct else term.values.unbind(dim=1)
        columns += [(start + i, values[i]) for i in range(len(term.names))]
    return [(action, column.data_ptr(), column.stride(0) * column.element_size()) for action, column in columns]


def _overrides(term: Action, method: str) -> bool:
    return getattr(type(term), method) is not getattr(Action, method)
