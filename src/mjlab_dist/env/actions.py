"""Conversion of the policy's output to actuator inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.config import ActionConfig
from mjlab_dist.env import kernels
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation


class Actions:
    """Actuator inputs ctrl = offset + scale * clip(action), delayed by ``lag`` steps.

    Attributes:
        names: Actuator of each action.
        actions: The policy's latest output, (num_envs, num_actions).
        previous: The output before that, (num_envs, num_actions).
        sent: Clipped outputs of the latest steps, newest first, (num_envs, steps, num_actions).
        lag: Delay of each action in steps, (num_envs, num_actions) of int64.
    """

    def __init__(
        self,
        blocks: Mapping[str, ActionConfig],
        sim: Simulation,
        home: torch.Tensor,
    ) -> None:
        """Look up the actuators and record the programs.

        Args:
            blocks: The action blocks by name.
            sim: The physics.
            home: Joint positions of the start state, (nq,).

        Raises:
            UserError: If an actuator does not exist or is driven by two actions, or if the offset is ``home`` and the
                actuator does not drive a hinge or slide joint.
        """
        # Actuators and their configs
        found = list(_find(blocks, sim.model))
        self.names = [sim.model.actuator(actuator).name for _, _, actuator in found]
        columns = [actuator for _, _, actuator in found]
        if len(set(columns)) < len(columns):
            raise UserError("--env.actions: an actuator is driven by two actions; name each actuator once")
        configs = [config for _, config, _ in found]
        shape = (sim.num_envs, len(configs))

        # State
        min_lags, max_lags = ([config.latency[end] for config in configs] for end in (0, 1))
        self._has_latency = max(max_lags, default=0) > 0
        self._given, self.actions, self.previous = torch.zeros(3, *shape, device=sim.device)
        self.sent = torch.zeros(sim.num_envs, 1 + max(max_lags, default=0), len(configs), device=sim.device)
        self.lag = torch.zeros(shape, dtype=torch.long, device=sim.device)
        self._drawn = torch.zeros(sim.num_envs, device=sim.device)

        # Constants of the kernels
        bounds = [config.clip or (-math.inf, math.inf) for config in configs]
        action_ids = [columns.index(actuator) if actuator in columns else -1 for actuator in range(sim.model.nu)]
        with wp.ScopedDevice(sim.device):
            constants = [
                wp.array([low for low, _ in bounds], dtype=float),
                wp.array([high for _, high in bounds], dtype=float),
                wp.array([config.scale for config in configs], dtype=float),
                wp.array([_offset(*one, sim.model, home) for one in found], dtype=float),
                wp.array(action_ids, dtype=int),
            ]
            spread = [high - low for low, high in zip(min_lags, max_lags, strict=True)]
            lags = [wp.array(min_lags, dtype=int), wp.array(spread, dtype=int)]

        # Programs
        memory = [wp.from_torch(tensor) for tensor in (self.actions, self.previous, self.sent, sim.ctrl)]
        given, lag, drawn = (wp.from_torch(tensor) for tensor in (self._given, self.lag, self._drawn))

        def send(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.send_actions, (sim.num_envs, sim.model.nu), [given, *constants, lag], memory)

        def draw(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.draw_lags, shape, [sim.reset_mask, drawn, *lags], [lag])

        self._send = sim.record(send, changes_state=False)
        self._draw_lags = sim.record(draw, changes_state=False) if self._has_latency else None

    def apply(self, actions: torch.Tensor) -> None:
        """Set the actuator inputs of the next step from the policy's output.

        Args:
            actions: The policy's output, (num_envs, num_actions).
        """
        self._given.copy_(actions)
        self._send()

    def reset(self) -> None:
        """Draw the latency of actions in the envs of the latest reset of the physics."""
        if self._draw_lags is not None:
            self._drawn.uniform_()
            self._draw_lags()

    def cleared(self) -> list[torch.Tensor]:
        """Return the tensors whose rows the env sets to 0 when an episode starts."""
        return [self.actions, self.previous, self.sent]

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield names and tensors, (num_envs, ...), of delayed actions; nothing without latency."""
        if self._has_latency:
            yield "sent", self.sent
            yield "lag", self.lag


def _find(blocks: Mapping[str, ActionConfig], model: mujoco.MjModel) -> Iterator[tuple[str, ActionConfig, int]]:
    """Yield block name, block and actuator id of every action."""
    known = [model.actuator(i).name for i in range(model.nu)]
    for name, block in blocks.items():
        for pattern in block.actuators:
            ids = [known.index(pattern)] if pattern in known else _matches(pattern, known)
            if not ids:
                raise UserError(f"--env.actions.{name}.actuators {pattern}: the model has {', '.join(known)}")
            yield from ((name, block, i) for i in ids)


def _matches(pattern: str, names: list[str]) -> list[int]:
    try:
        return [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
    except re.error:
        return []


def _offset(name: str, config: ActionConfig, actuator: int, model: mujoco.MjModel, home: torch.Tensor) -> float:
    if config.offset != "home":
        return config.offset
    kind, joint = model.actuator_trntype[actuator], model.actuator_trnid[actuator, 0]
    if kind != mujoco.mjtTrn.mjTRN_JOINT or model.jnt_type[joint] < int(mujoco.mjtJoint.mjJNT_SLIDE):
        raise UserError(
            f"--env.actions.{name}.offset home: actuator {model.actuator(actuator).name} drives no hinge or slide "
            "joint; use a number"
        )
    return float(home[model.jnt_qposadr[joint]])
