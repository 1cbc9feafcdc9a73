"""From the policy's output to actuator inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import mujoco
import torch

from mjlab_dist.config import ActionConfig
from mjlab_dist.env.term import write_rows
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation


class Actions:
    """ctrl = offset + scale * clip(action), some steps late where there is latency.

    Attributes:
        names: Actuator of each action.
    """

    def __init__(self, blocks: Mapping[str, ActionConfig], sim: Simulation, home: torch.Tensor) -> None:
        """Look up actuators.

        Args:
            blocks: The action blocks by name.
            sim: The physics.
            home: Joint positions of the start state, (nq,).

        Raises:
            UserError: If an actuator does not exist or is driven twice, or if its home is asked for and it has no joint.
        """
        self._sim = sim
        found = list(_find(blocks, sim.model))
        self.names = [sim.model.actuator(actuator).name for _, _, actuator in found]
        columns = [actuator for _, _, actuator in found]
        if len(set(columns)) < len(columns):
            raise UserError("--env.actions: an actuator is driven by two actions; name each one once")
        configs = [config for _, config, _ in found]
        device = sim.device
        self._scale = torch.tensor([config.scale for config in configs], device=device)
        self._offset = torch.tensor([_offset(*one, sim.model, home) for one in found], device=device)
        self._clip = _clip(configs, device)
        # A fixed matrix scatters actions to their actuators: no index, and actuators without an action stay at 0.
        self._scatter = torch.zeros(len(columns), sim.model.nu, device=device)
        self._scatter[range(len(columns)), columns] = 1.0
        self._latency = _Latency(configs, sim.num_envs, device) if any(c.latency[1] for c in configs) else None

    def apply(self, actions: torch.Tensor) -> None:
        """Set the actuators' inputs for the next step.

        Args:
            actions: The policy's output, (num_envs, num_actions).
        """
        if self._clip is not None:
            actions = actions.clamp(*self._clip)
        if self._latency is not None:
            actions = self._latency.pass_on(actions)
        torch.mm(torch.addcmul(self._offset, actions, self._scale), self._scatter, out=self._sim.ctrl)

    def reset(self, mask: torch.Tensor) -> None:
        """Forget actions that are on their way.

        Args:
            mask: Envs in which an episode starts, (num_envs,) of bool.
        """
        if self._latency is not None:
            self._latency.reset(mask)

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Names and tensors, (num_envs, ...), of what is on its way."""
        if self._latency is not None:
            yield "sent", self._latency.sent
            yield "lag", self._latency.lag


class _Latency:
    """Actions on their way."""

    def __init__(self, configs: list[ActionConfig], num_envs: int, device: str) -> None:
        self._fewest = torch.tensor([config.latency[0] for config in configs], device=device)
        self._spread = torch.tensor([config.latency[1] - config.latency[0] + 1 for config in configs], device=device)
        depth = 1 + max(config.latency[1] for config in configs)
        # Newest first.
        self.sent = torch.zeros(num_envs, depth, len(configs), device=device)
        self.lag = torch.zeros(num_envs, len(configs), dtype=torch.long, device=device)

    def pass_on(self, actions: torch.Tensor) -> torch.Tensor:
        self.sent.copy_(torch.cat([actions.unsqueeze(1), self.sent[:, :-1]], dim=1))
        return self.sent.gather(1, self.lag.unsqueeze(1)).squeeze(1)

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self.sent, mask, 0.0)
        # One draw an env: what is late is the link to the robot, and all its motors with it.
        drawn = torch.rand(len(mask), 1, device=mask.device)
        write_rows(self.lag, mask, self._fewest + (drawn * self._spread).long().clamp(max=self._spread - 1))


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


def _clip(configs: list[ActionConfig], device: str) -> tuple[torch.Tensor, torch.Tensor] | None:
    if all(config.clip is None for config in configs):
        return None
    bounds = [config.clip or (-math.inf, math.inf) for config in configs]
    low, high = torch.tensor(bounds, device=device).unbind(dim=1)
    return low, high
