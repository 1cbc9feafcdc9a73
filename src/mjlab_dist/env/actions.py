"""Conversion of the policy's output to actuator inputs."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import mujoco
import torch
import warp as wp

from mjlab_dist.config import ActionConfig
from mjlab_dist.env import kernels
from mjlab_dist.env.action import Action, ActionBlock
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.binding import Binder
    from mjlab_dist.env.env import Env
    from mjlab_dist.sim import Limits


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
