"""From the policy's output to actuator inputs."""

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
    """ctrl = offset + scale * clip(action), some steps late where there is latency.

    Attributes:
        names: Actuator of each action.
        actions: The policy's last output, (num_envs, num_actions).
        previous: Its output before that, (num_envs, num_actions).
        sent: Clipped outputs of the newest steps, the newest first, (num_envs, steps, num_actions).
        lag: Steps that each action is late, (num_envs, num_actions) of int64.
    """

    def __init__(
        self,
        blocks: Mapping[str, ActionConfig],
        sim: Simulation,
        home: torch.Tensor,
    ) -> None:
        """Look up actuators.

        Args:
            blocks: The action blocks by name.
            sim: The physics.
            home: Joint positions of the start state, (nq,).

        Raises:
            UserError: If an actuator does not exist or is driven twice, or if its home is asked for and it has no joint.
        """
        found = list(_find(blocks, sim.model))
        self.names = [sim.model.actuator(actuator).name for _, _, actuator in found]
        columns = [actuator for _, _, actuator in found]
        if len(set(columns)) < len(columns):
            raise UserError("--env.actions: an actuator is driven by two actions; name each one once")
        configs = [config for _, config, _ in found]
        shape = (sim.num_envs, len(configs))
        fewest, most = ([config.latency[end] for config in configs] for end in (0, 1))
        self._is_late = max(most, default=0) > 0
        self._given, self.actions, self.previous = torch.zeros(3, *shape, device=sim.device)
        self.sent = torch.zeros(sim.num_envs, 1 + max(most, default=0), len(configs), device=sim.device)
        self.lag = torch.zeros(shape, dtype=torch.long, device=sim.device)
        self._drawn = torch.zeros(sim.num_envs, device=sim.device)
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
            spread = [high - low for low, high in zip(fewest, most, strict=True)]
            lags = [wp.array(fewest, dtype=int), wp.array(spread, dtype=int)]
        memory = [wp.from_torch(tensor) for tensor in (self.actions, self.previous, self.sent, sim.ctrl)]
        given, lag, drawn = (wp.from_torch(tensor) for tensor in (self._given, self.lag, self._drawn))

        def send(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.send_actions, (sim.num_envs, sim.model.nu), [given, *constants, lag], memory)

        def draw(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.draw_lags, shape, [sim.reset_mask, drawn, *lags], [lag])

        self._send = sim.record(send, changes_state=False)
        self._draw_lags = sim.record(draw, changes_state=False) if self._is_late else None

    def apply(self, actions: torch.Tensor) -> None:
        """Take the policy's output, and set the actuators' inputs for the next step.

        Args:
            actions: The policy's output, (num_envs, num_actions).
        """
        self._given.copy_(actions)
        self._send()

    def reset(self) -> None:
        """Draw how late actions are, in the envs of the newest reset of the physics."""
        if self._draw_lags is not None:
            self._drawn.uniform_()
            self._draw_lags()

    def cleared(self) -> list[torch.Tensor]:
        """Return what the env sets to 0 where an episode starts."""
        return [self.actions, self.previous, self.sent]

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, (num_envs, ...), of what is on its way."""
        if self._is_late:
            yield "sent", self.sent
            yield "lag", self.lag


def _find(blocks: Mapping[str, ActionConfig], model: mujoco.MjModel) -> Iterator[tuple[str, ActionConfig, int]]:
    """Block name, block and actuator id of every action."""
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
            f"--env.actions.{name}.offset home: actuator {model.actuator(actuator).name} is on no hinge or slide joint; "
            "give a number"
        )
    return float(home[model.jnt_qposadr[joint]])
