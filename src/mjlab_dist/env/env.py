"""rsl_rl's VecEnv over a :class:`~mjlab_dist.sim.Simulation`. A step has no host sync, no index and no branch on data."""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mujoco
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from mjlab_dist.config import ActionConfig, EnvConfig, RewardConfig, TermConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, copy_state, load_model


class StartState(NamedTuple):
    """The state that episodes start from, for every env; which of them start is up to the env."""

    qpos: torch.Tensor
    """Joint positions, (num_envs, nq)."""
    qvel: torch.Tensor
    """Joint velocities, (num_envs, nv)."""


class EpisodeTotals(NamedTuple):
    """Sums over the episodes that ended since the last call; all on the env's device."""

    episodes: torch.Tensor
    """How many, a scalar."""
    steps: torch.Tensor
    """Their control steps, a scalar."""
    terms: torch.Tensor
    """Their weighted rewards by term, (num_terms,); the return is their sum."""


class Joint(NamedTuple):
    """Where a joint stands in the state."""

    qpos: slice
    """Columns of ``qpos``."""
    qvel: slice
    """Columns of ``qvel``."""


class Joints(dict[str, Joint]):
    """Joints by name."""

    def __missing__(self, name: str) -> Joint:
        raise UserError(f"joint {name}: the model has {', '.join(self)}")


class Env(VecEnv):
    """Thousands of copies of one task on one device.

    Attributes:
        sim: The physics; terms read its state tensors.
        actions: The policy's last output, (num_envs, num_actions).
        joints: Joints by name.
        reward_names: Names of the reward terms, in the order of ``EpisodeTotals.terms``.
        step_dt_s: Simulated seconds per control step.
        env_ids: Which envs of the whole run these are, (num_envs,) of int64: terms read it where envs are to differ, whatever
            rank they are on (a terrain's tile, a curriculum's level). No two ranks share one.
    """

    max_episode_length: int
    device: str
    cfg: EnvConfig

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        device: str,
        announce: Callable[[], None] = lambda: None,
        first_env_id: int = 0,
    ) -> None:
        """Build the envs and start an episode in each.

        Args:
            config: The task.
            num_envs: Envs on this rank.
            device: ``cpu`` or ``cuda:<index>``.
            announce: Called if kernels have to be compiled, which takes a while.
            first_env_id: Id of the first env; rank r of a run with n envs per rank has r * n.

        Raises:
            UserError: If the config names a function, an actuator or a model that does not exist.
        """
        self.cfg = config
        self.num_envs = num_envs
        self.device = device
        self.env_ids = torch.arange(first_env_id, first_env_id + num_envs, device=device)
        self.sim = Simulation(load_model(config.sim.model), num_envs, device, config.sim, announce)
        self.step_dt_s = self.sim.dt_s
        self.max_episode_length = round(config.episode_length_s / self.step_dt_s)
        if self.max_episode_length < 1:
            raise UserError(
                f"--env.episode-length-s {config.episode_length_s}: is less than one control step of {self.step_dt_s} s"
            )
        self.joints = _joints(self.sim.model)

        self._control = _Control(config.actions, self.sim)
        self.num_actions = self._control.num_actions
        self._observations = {
            group: _bind_all(f"observations.{group}", terms) for group, terms in config.observations.items()
        }
        self._rewards = _bind_all("rewards", config.rewards)
        self._terminations = _bind_all("terminations", config.terminations)
        self._events = _bind_all("events", config.events)
        self.reward_names = tuple(config.rewards)

        self.actions = torch.zeros(num_envs, self.num_actions, device=device)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self._weights = torch.tensor([term.weight for term in config.rewards.values()], device=device)
        self._episode_sums = torch.zeros(len(self.reward_names), num_envs, device=device)
        self._from_start = torch.ones(num_envs, dtype=torch.bool, device=device)
        self._totals = torch.zeros(2 + len(self.reward_names), device=device)
        self._nan_resets = torch.zeros((), dtype=torch.long, device=device)
        self._reference = StartState(self.sim.qpos.clone(), self.sim.qvel.clone())
        self.reset()

    def reset(self) -> TensorDict:
        """Start a new episode in every env and return its observations."""
        self._start_episodes(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self._from_start.fill_(True)
        return self._observe()

    def stagger(self) -> None:
        """Give every env a random age, so that episodes do not all end in the same step.

        The first, shortened episodes stay out of the totals: their returns would be too small.
        """
        self.episode_length_buf.random_(0, self.max_episode_length)
        self._from_start.fill_(False)

    def get_observations(self) -> TensorDict:
        """The current observations: a tensor (num_envs, width) per group."""
        return self._observe()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Advance every env by one control step; those that are done start a new episode at once.

        Where ``nan_policy`` is reset, so does an env in which physics, an observation or a reward term is not finite: it
        counts as terminated, with a reward of 0, and its episode in no total. What it then observes is returned as it is: a
        term that is not finite at the start of an episode either has to be mended, and poses and sensors, without
        ``forward_before_observation``, are those from before the reset.

        Args:
            actions: The policy's output, (num_envs, num_actions).

        Returns:
            Observations (after resets), rewards (num_envs,), dones (num_envs,) of bool, and extras, whose ``time_outs``
            (num_envs,) marks episodes that reached the time limit without terminating.
        """
        self.actions.copy_(actions)
        self._control.apply(self.actions)
        self.sim.step()
        self.episode_length_buf += 1

        timed_out = self.episode_length_buf >= self.max_episode_length
        terminated = functools.reduce(
            torch.logical_or, (term(self) for term in self._terminations), timed_out.new_zeros(())
        )
        terms = torch.stack([term(self) for term in self._rewards])
        if self.cfg.nan_policy == "reset":
            broken = self._find_broken(terms)
            terms = terms.masked_fill(broken, 0.0)
            terminated = terminated | broken
        done = timed_out | terminated
        rewards = self._weights @ terms

        self._episode_sums += terms
        self._count_episodes(done)
        self._start_episodes(done)
        return self._observe(), rewards, done, {"time_outs": timed_out & ~terminated}

    def num_bytes(self) -> int:
        """Bytes of device memory that the physics and the env's own tensors hold, without what a step allocates for itself."""
        held = [value for value in (*vars(self).values(), *self._reference) if isinstance(value, torch.Tensor)]
        return self.sim.num_bytes() + sum(tensor.nbytes for tensor in held)

    def pop_episode_totals(self) -> EpisodeTotals:
        """Sums over the episodes that ended since the last call."""
        totals = EpisodeTotals(self._totals[0].clone(), self._totals[1].clone(), self._weights * self._totals[2:])
        self._totals.zero_()
        return totals

    def pop_nan_resets(self) -> torch.Tensor:
        """How many envs ``nan_policy`` reset since the last call, a scalar; always 0 where it is stop."""
        resets = self._nan_resets.clone()
        self._nan_resets.zero_()
        return resets

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of everything that the future of these envs depends on, random states aside.

        Returns:
            Tensors by name, on the env's device: (num_envs, ...), but for ``totals`` and ``nan_resets``, which are sums over envs.
        """
        return {name: tensor.clone() for name, tensor in self._held().items()}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from where other envs of this task were. Poses and sensors are only so after the next step.

        Args:
            state: Their :meth:`state`, on any device.

        Raises:
            UserError: If it is of another task, or of another number of envs; nothing has changed then.
        """
        copy_state(state, self._held())

    def observation_columns(self) -> dict[str, dict[str, slice]]:
        """Which columns of each observation group each term has. Evaluates every term."""
        columns: dict[str, dict[str, slice]] = {}
        for group, terms in self._observations.items():
            ends = itertools.accumulate((term(self).shape[-1] for term in terms), initial=0)
            names = self.cfg.observations[group]
            columns[group] = {name: slice(*ends) for name, ends in zip(names, itertools.pairwise(ends), strict=True)}
        return columns

    def _held(self) -> dict[str, torch.Tensor]:
        return {
            **{f"sim.{name}": tensor for name, tensor in self.sim.state().items()},
            "actions": self.actions,
            "episode_length": self.episode_length_buf,
            "episode_sums": self._episode_sums.T,
            "from_start": self._from_start,
            "totals": self._totals,
            "nan_resets": self._nan_resets,
        }

    def _find_broken(self, terms: torch.Tensor) -> torch.Tensor:
        """Envs in which a number is not finite, (num_envs,) of bool; they are counted, and their episodes stay out of the totals."""
        numbers = [self.sim.qpos, self.sim.qvel, self.sim.view("act"), *self._observe().values(), terms.T]
        broken = ~torch.cat([tensor.flatten(1) for tensor in numbers], dim=1).isfinite().all(dim=1)
        self._nan_resets += broken.sum()
        self._from_start &= ~broken
        return broken

    def _count_episodes(self, done: torch.Tensor) -> None:
        counted = (done & self._from_start).to(self._totals.dtype)
        self._totals[0] += counted.sum()
        self._totals[1] += counted @ self.episode_length_buf.to(counted.dtype)
        self._totals[2:] += self._episode_sums @ counted
        self._from_start |= done

    def _start_episodes(self, mask: torch.Tensor) -> None:
        self.sim.reset(mask)
        start = self._reference
        for event in self._events:
            start = event(self, start)
        chosen = mask.unsqueeze(1)
        self.sim.qpos.copy_(torch.where(chosen, start.qpos, self.sim.qpos))
        self.sim.qvel.copy_(torch.where(chosen, start.qvel, self.sim.qvel))
        self.episode_length_buf.masked_fill_(mask, 0)
        self._episode_sums.masked_fill_(mask, 0.0)
        self.actions.masked_fill_(chosen, 0.0)

    def _observe(self) -> TensorDict:
        if self.cfg.sim.forward_before_observation:
            self.sim.forward()
        groups = {
            group: torch.cat([term(self) for term in terms], dim=-1) for group, terms in self._observations.items()
        }
        return TensorDict(groups, batch_size=[self.num_envs], device=self.device)


class _Control:
    """From the policy's output to actuator inputs: ctrl = offset + scale * action."""

    def __init__(self, blocks: Mapping[str, ActionConfig], sim: Simulation) -> None:
        known = [sim.model.actuator(i).name for i in range(sim.model.nu)]
        columns: list[int] = []
        scale: list[float] = []
        offset: list[float] = []
        for name, block in blocks.items():
            for actuator in block.actuators:
                if actuator not in known:
                    raise UserError(f"--env.actions.{name}.actuators {actuator}: the model has {', '.join(known)}")
                columns.append(known.index(actuator))
                scale.append(block.scale)
                offset.append(block.offset)
        if len(set(columns)) < len(columns):
            raise UserError("--env.actions: an actuator is driven by two actions; name each one once")
        self.num_actions = len(columns)
        self._sim = sim
        self._scale = torch.tensor(scale, device=sim.device)
        self._offset = torch.tensor(offset, device=sim.device)
        # A fixed matrix scatters actions to their actuators: no index, and actuators without an action stay at 0.
        self._scatter = torch.zeros(len(columns), sim.model.nu, device=sim.device)
        self._scatter[range(len(columns)), columns] = 1.0

    def apply(self, actions: torch.Tensor) -> None:
        torch.mm(actions * self._scale + self._offset, self._scatter, out=self._sim.ctrl)


def _joints(model: mujoco.MjModel) -> Joints:
    joints = [model.joint(i) for i in range(model.njnt)]
    return Joints(
        {
            joint.name: Joint(
                slice(int(joint.qposadr[0]), int(joint.qposadr[0]) + len(joint.qpos0)),
                slice(int(joint.dofadr[0]), int(joint.dofadr[0]) + len(joint.damping)),
            )
            for joint in joints
        }
    )


def _bind_all(where: str, terms: Mapping[str, TermConfig | RewardConfig]) -> list[Callable[..., Any]]:
    return [_bind(f"--env.{where}.{name}.func", term) for name, term in terms.items()]


def _bind(flag: str, term: TermConfig | RewardConfig) -> Callable[..., Any]:
    module, _, name = term.func.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"{flag} {term.func}: {error}; write package.module:function") from error
    if not callable(function):
        raise UserError(f"{flag} {term.func}: is no function; write package.module:function")
    try:
        inspect.signature(function).bind_partial(**term.params)
    except TypeError as error:
        raise UserError(f"{flag} {term.func}: {error}; change the params of the term") from error
    return functools.partial(function, **term.params)
