"""rsl_rl's VecEnv over a :class:`~mjlab_dist.sim.Simulation`. A step has no host sync, no index and no branch on data."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from mjlab_dist.config import EnvConfig, EventConfig, TermConfig
from mjlab_dist.env import kernels
from mjlab_dist.env.actions import Actions
from mjlab_dist.env.base import Base
from mjlab_dist.env.binding import bind
from mjlab_dist.env.columns import Columns, find_names, uniform, write_rows
from mjlab_dist.env.observation_group import ObservationGroup
from mjlab_dist.env.randomization import Randomizations
from mjlab_dist.env.term import Command, Curriculum, OutsideOfGraphs, Sensor, Term, is_capturable, state_part
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, build_model, copy_state
from mjlab_dist.sim.terrain import Terrain

TermT = TypeVar("TermT", bound=Term)

_NamedT = TypeVar("_NamedT")

_FREE = 7
"""Columns of a free joint in ``qpos``: position and quaternion."""


class StartState(NamedTuple):
    """The state that an episode starts from before events change it."""

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


class JointSelection(NamedTuple):
    """Several hinge or slide joints."""

    names: tuple[str, ...]
    """Their names, in the model's order."""
    qpos: Columns
    """Their columns of ``qpos``."""
    qvel: Columns
    """Their columns of ``qvel``."""
    lower: torch.Tensor
    """Their lower limits in rad or m, (joints,); -inf without limits."""
    upper: torch.Tensor
    """Their upper limits in rad or m, (joints,); inf without limits."""


class Env(VecEnv):
    """Thousands of copies of one task on one device.

    Attributes:
        sim: The physics; terms read its state tensors.
        actions: The policy's last output, (num_envs, num_actions).
        previous_actions: Its output before that, (num_envs, num_actions).
        actuator_names: The actuator that each action drives.
        terminated: Envs whose episode the present step has ended otherwise than by time, (num_envs,) of bool.
        timed_out: Envs whose episode has reached the time limit in the present step, (num_envs,) of bool.
        joints: Joints by name.
        reference: The start state before events.
        terrain: The ground, where the task has one made of tiles.
        origins: Where each env's episode starts from, in the world's frame, in m, (num_envs, 3); 0 without terrain.
        weights: Weights of the reward terms, (num_terms,); a curriculum may change them.
        reward_names: Names of the reward terms, in the order of ``EpisodeTotals.terms``.
        uncapturable_terms: Terms that no CUDA graph can hold, as ``rewards.<name>``.
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
        first_env_id: int = 0,
    ) -> None:
        """Build the envs and start an episode in each.

        Args:
            config: The task.
            num_envs: Envs on this rank.
            device: ``cpu`` or ``cuda:<index>``.
            first_env_id: Id of the first env; rank r of a run with n envs per rank has r * n.

        Raises:
            UserError: If the config names a function, an actuator or a model that does not exist.
        """
        self.cfg = config
        self.num_envs = num_envs
        self.device = device
        self.env_ids = torch.arange(first_env_id, first_env_id + num_envs, device=device)
        fields = tuple(dict.fromkeys(draw.field for draw in config.randomizations.values()))
        self.sim = Simulation(build_model(config.sim), num_envs, device, config.sim, fields)
        self.step_dt_s = self.sim.dt_s
        self.max_episode_length = round(config.episode_length_s / self.step_dt_s)
        if self.max_episode_length < 1:
            raise UserError(
                f"--env.episode-length-s {config.episode_length_s}: is less than one control step of {self.step_dt_s} s"
            )
        everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.sim.reset(everywhere)
        self.reference = StartState(self.sim.qpos.clone(), self.sim.qvel.clone())
        self.joints = _joints(self.sim.model)
        self._bases = {
            name: Base(self.sim, *columns) for name, columns in self.joints.items() if _width(columns.qpos) == _FREE
        }
        self.terrain = Terrain(config.sim.terrain) if config.sim.terrain.parts else None
        self.origins = _origins(self.terrain, self.env_ids)
        self._actions = Actions(config.actions, self.sim, self.reference.qpos[0])
        self.actuator_names = self._actions.names
        self.num_actions = len(self.actuator_names)
        self.actions = self._actions.actions
        self.previous_actions = self._actions.previous
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.terminated, self.timed_out = torch.zeros(2, num_envs, dtype=torch.bool, device=device)
        self.reward_names = tuple(config.rewards)
        self.weights = torch.tensor([term.weight for term in config.rewards.values()], device=device)
        # What is summed over episodes that end: 1, their steps, and their rewards by term.
        self._ledger = torch.zeros(2 + len(self.reward_names), num_envs, device=device)
        self._ledger[0] = 1.0
        # 1 where the present episode counts, 0 where its start was not seen; a float, to be multiplied.
        self._from_start = torch.ones(num_envs, device=device)
        self._totals = torch.zeros(2 + len(self.reward_names), device=device)
        self._nan_resets = torch.zeros((), dtype=torch.long, device=device)
        self._bind_terms()
        self._record_bookkeeping()
        self.reset()

    def _bind_terms(self) -> None:
        config = self.cfg
        self._memories: dict[str, Term] = {}
        self.uncapturable_terms: list[str] = []
        self._randomizations = Randomizations(config.randomizations, self.sim)
        self._sensors: dict[str, Sensor] = self._bind_classes("sensors", config.sensors, Sensor)
        self._commands: dict[str, Command] = self._bind_classes("commands", config.commands, Command)
        self._rewards = [
            self._bind_call(f"rewards.{name}", term.func, term.params) for name, term in config.rewards.items()
        ]
        self._terminations = [
            self._bind_call(f"terminations.{name}", term.func, term.params)
            for name, term in config.terminations.items()
        ]
        self._curricula: dict[str, Curriculum] = self._bind_classes("curricula", config.curricula, Curriculum)
        events: dict[str, list[tuple[EventConfig, Callable[..., Any]]]] = {"startup": [], "reset": [], "interval": []}
        for name, event in config.events.items():
            bound = self._bind_call(f"events.{name}", event.func, event.params, num_args=2)
            events[event.when].append((event, bound))
        self._reset_events = [bound for _, bound in events["reset"]]
        self._interval_events = events["interval"]
        self._until_event_s = torch.zeros(self.num_envs, len(self._interval_events), device=self.device)
        for _, bound in events["startup"]:
            bound(self, torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        # Last, since widths are measured: terms must find sensors, commands and origins.
        self._observations = {
            group: ObservationGroup(
                terms,
                [
                    functools.partial(self._bind_call(f"observations.{group}.{name}", term.func, term.params), self)
                    for name, term in terms.items()
                ],
                self.num_envs,
                self.device,
            )
            for group, terms in config.observations.items()
        }
        self._sensor_updates = [self._outside_if_needed(sensor.update) for sensor in self._sensors.values()]
        self._command_updates = [self._outside_if_needed(command.update) for command in self._commands.values()]
        self._episode_ends = [self._outside_if_needed(one.episode_ends) for one in self._curricula.values()]
        self._resets = [self._outside_if_needed(term.reset) for term in self._memories.values()]

    def _record_bookkeeping(self) -> None:
        """Record what a step and a reset do to the env's own memory and to that of its terms."""
        clocks = (self.episode_length_buf, self._ledger[1], self._until_event_s, self.timed_out, self.terminated)
        arrays: list[Any] = [wp.from_torch(tensor) for tensor in clocks]

        def begin_step(model: mjw.Model, data: mjw.Data) -> None:  # noqa: ARG001 (every program takes them)
            wp.launch(kernels.begin_step, self.num_envs, [self.max_episode_length, self.step_dt_s, *arrays])

        self._begin_step = self.sim.record(begin_step, changes_state=False)
        of_terms = [tensor for term in self._memories.values() for tensor in term.cleared()]
        own = [self.episode_length_buf, *self._ledger[2:]]
        self._clear = self.sim.record_clearing([*self._actions.cleared(), *of_terms, *own])

    def reset(self) -> TensorDict:
        """Start a new episode in every env and return its observations."""
        self._start_episodes(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self._from_start.fill_(1.0)
        for update in self._command_updates:
            update(self)
        return self._observe()

    def stagger(self) -> None:
        """Give every env a random age, so that episodes do not all end in the same step.

        The first, shortened episodes stay out of the totals: their returns would be too small.
        """
        self.episode_length_buf.random_(0, self.max_episode_length)
        self._from_start.fill_(0.0)

    def get_observations(self) -> TensorDict:
        """What the last step or reset returned: a tensor (num_envs, width) per group."""
        return self._observed

    def command(self, name: str) -> torch.Tensor:
        """A command's value, (num_envs, k).

        Args:
            name: Its name in ``env.commands``.

        Raises:
            UserError: If there is no such command.
        """
        return _named("command", name, self._commands).value

    def sensor(self, name: str, kind: type[TermT]) -> TermT:
        """A sensor that remembers.

        Args:
            name: Its name in ``env.sensors``.
            kind: Its class.

        Raises:
            UserError: If there is no such sensor, or it is of another class.
        """
        found = _named("sensor", name, self._sensors)
        if not isinstance(found, kind):
            raise UserError(f"sensor {name}: is a {type(found).__name__}, and a {kind.__name__} is wanted")
        return found

    def base(self, joint: str = "root") -> Base:
        """Return gravity, velocities and heading of a free-floating body.

        Args:
            joint: Its free joint.

        Raises:
            UserError: If there is no such joint, or it is not free.
        """
        _ = self.joints[joint]
        return _named("free joint", joint, self._bases)

    def find_command(self, name: str) -> Command:
        """A command itself, for a curriculum to change its ranges.

        Args:
            name: Its name in ``env.commands``.

        Raises:
            UserError: If there is no such command.
        """
        return _named("command", name, self._commands)

    def find_joints(self, patterns: tuple[str, ...]) -> JointSelection:
        """Hinge and slide joints by regular expressions of their names.

        Args:
            patterns: Regular expressions; a joint that one of them fits as a whole is chosen.

        Raises:
            UserError: If one fits no joint, or is no regular expression.
        """
        model = self.sim.model
        simple = [i for i in range(model.njnt) if model.jnt_type[i] >= int(mujoco.mjtJoint.mjJNT_SLIDE)]
        names = [model.joint(i).name for i in simple]
        ids = [simple[i] for i in find_names("joints", patterns, names)]
        limits = [tuple(model.jnt_range[i]) if model.jnt_limited[i] else (-torch.inf, torch.inf) for i in ids]
        lower, upper = torch.tensor(limits, dtype=torch.float32, device=self.device).unbind(dim=1)
        return JointSelection(
            tuple(model.joint(i).name for i in ids),
            Columns([int(model.jnt_qposadr[i]) for i in ids], self.device),
            Columns([int(model.jnt_dofadr[i]) for i in ids], self.device),
            lower,
            upper,
        )

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
        self._actions.apply(actions)
        self.sim.step()
        self._begin_step()
        for update in self._sensor_updates:
            update(self)

        for termination in self._terminations:
            self.terminated |= termination(self)
        earned = [term(self) for term in self._rewards]
        terms = torch.stack(earned) if len(earned) > 1 else earned[0].unsqueeze(0)
        if self.cfg.nan_policy == "reset":
            broken = self._find_broken(terms)
            terms = terms.masked_fill(broken, 0.0)
            self.terminated |= broken
        done = self.timed_out | self.terminated
        time_outs = self.timed_out > self.terminated  # and not terminated
        rewards = self.weights @ terms

        self._ledger[2:].add_(terms)
        self._count_episodes(done)
        for episode_ends in self._episode_ends:
            episode_ends(self, done)
        self._start_episodes(done)
        for update in self._command_updates:
            update(self)
        self._happen()
        return self._observe(), rewards, done, {"time_outs": time_outs}

    def end_iteration(self, totals: EpisodeTotals) -> None:
        """Have curricula look at an iteration.

        Args:
            totals: Of the episodes that ended in it, over all ranks.
        """
        for curriculum in self._curricula.values():
            curriculum.iteration_ends(self, totals)

    def curriculum_metrics(self) -> dict[str, torch.Tensor]:
        """How far curricula are, by name, as scalars: means over this rank's envs."""
        return {
            f"{name}/{metric}": value
            for name, curriculum in self._curricula.items()
            for metric, value in curriculum.metrics().items()
        }

    def num_bytes(self) -> int:
        """Bytes of device memory that the physics and the env's own tensors hold, without what a step allocates for itself."""
        known = [value for value in (*vars(self).values(), *self.reference) if isinstance(value, torch.Tensor)]
        held = {tensor.data_ptr(): tensor.nbytes for tensor in (*known, *self._remembered().values())}
        return self.sim.num_bytes() + sum(held.values())

    def pop_episode_totals(self) -> EpisodeTotals:
        """Sums over the episodes that ended since the last call."""
        totals = EpisodeTotals(self._totals[0].clone(), self._totals[1].clone(), self.weights * self._totals[2:])
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

    def resume_curricula(self, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Have curricula go on from where they were in a run that had other ranks or envs; those that it had not start anew.

        Args:
            states: What :meth:`state` was on each rank, on any device.
        """
        for name, curriculum in self._curricula.items():
            saved = [
                {key: value.to(self.device) for key, value in state_part(state, f"curricula.{name}.").items()}
                for state in states
            ]
            if saved and all(one.keys() == curriculum.state().keys() for one in saved):
                curriculum.go_on(saved)

    def observation_columns(self) -> dict[str, dict[str, slice]]:
        """Which columns of each observation group each term has."""
        return {name: group.columns for name, group in self._observations.items()}

    def _bind(self, where: str, func: str, params: Mapping[str, Any], *, num_args: int = 1) -> Any:
        term = bind(f"--env.{where}.func", func, params, self, num_args=num_args)
        if isinstance(term, Term):
            self._memories[where] = term
        if not is_capturable(term):
            self.uncapturable_terms.append(where)
        return term

    def _bind_call(self, where: str, func: str, params: Mapping[str, Any], *, num_args: int = 1) -> Any:
        return self._outside_if_needed(self._bind(where, func, params, num_args=num_args))

    def _outside_if_needed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a term or a method of one, as control steps have to call it."""
        return call if is_capturable(call) else OutsideOfGraphs(call, self.sim)

    def _bind_classes(self, kind: str, configs: Mapping[str, TermConfig], base: type[TermT]) -> dict[str, TermT]:
        found = {}
        for name, config in configs.items():
            term = self._bind(f"{kind}.{name}", config.func, config.params)
            if not isinstance(term, base):
                raise UserError(
                    f"--env.{kind}.{name}.func {config.func}: is no {base.__name__}; name a class that is one"
                )
            found[name] = term
        return found

    def _held(self) -> dict[str, torch.Tensor]:
        return {
            **{f"sim.{name}": tensor for name, tensor in self.sim.state().items()},
            **{f"model.{name}": tensor for name, tensor in self.sim.fields.items()},
            **self._remembered(),
            "actions": self.actions,
            "previous_actions": self.previous_actions,
            "episode_length": self.episode_length_buf,
            "episode_sums": self._ledger[2:].T,
            "from_start": self._from_start,
            "until_event_s": self._until_event_s,
            "origins": self.origins,
            "totals": self._totals,
            "nan_resets": self._nan_resets,
        }

    def _remembered(self) -> dict[str, torch.Tensor]:
        """What the parts remember from step to step."""
        return {
            **{f"randomized.{name}": tensor for name, tensor in self._randomizations.state().items()},
            **{f"actions.{name}": tensor for name, tensor in self._actions.state()},
            **{
                f"observations.{group}.{name}": tensor
                for group, terms in self._observations.items()
                for name, tensor in terms.state()
            },
            **{
                f"{where}.{name}": tensor
                for where, term in self._memories.items()
                for name, tensor in term.state().items()
            },
        }

    def _find_broken(self, terms: torch.Tensor) -> torch.Tensor:
        """Envs in which a number is not finite, (num_envs,) of bool; they are counted, and their episodes stay out of the totals."""
        observed = [group.clean() for group in self._observations.values()]
        numbers = [self.sim.qpos, self.sim.qvel, self.sim.view("act"), *observed, terms.T]
        broken = ~torch.cat([tensor.flatten(1) for tensor in numbers], dim=1).isfinite().all(dim=1)
        self._nan_resets += broken.sum()
        self._from_start.masked_fill_(broken, 0.0)
        return broken

    def _count_episodes(self, done: torch.Tensor) -> None:
        counted = done * self._from_start
        self._totals.addmv_(self._ledger, counted)
        self._from_start.masked_fill_(done, 1.0)

    def _start_episodes(self, mask: torch.Tensor) -> None:
        self.sim.reset(mask)
        for event in self._reset_events:
            event(self, mask)
        self._randomizations.reset(mask)
        self._actions.reset()
        for reset in self._resets:
            reset(mask)
        for group in self._observations.values():
            group.reset(mask)
        for column, (event, _) in enumerate(self._interval_events):
            self._draw_interval(column, event, mask)
        self._clear()

    def _happen(self) -> None:
        """Let events happen that are due, and draw when they are next."""
        for column, (event, bound) in enumerate(self._interval_events):
            due = self._until_event_s[:, column] < 0.5 * self.step_dt_s  # the nearest step
            bound(self, due)
            self._draw_interval(column, event, due)

    def _draw_interval(self, column: int, event: EventConfig, mask: torch.Tensor) -> None:
        left_s = self._until_event_s[:, column]
        write_rows(left_s, mask, uniform(left_s, *event.interval_s))

    def _observe(self) -> TensorDict:
        if self.cfg.sim.forward_before_observation:
            self.sim.forward()
        groups = {name: group.observe() for name, group in self._observations.items()}
        self._observed = TensorDict(groups, batch_size=[self.num_envs], device=self.device)
        return self._observed


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


def _width(columns: slice) -> int:
    return columns.stop - columns.start


def _named(kind: str, name: str, known: Mapping[str, _NamedT]) -> _NamedT:
    if name not in known:
        raise UserError(f"{kind} {name}: the task has {', '.join(known) or 'none'}")
    return known[name]


def _origins(terrain: Terrain | None, env_ids: torch.Tensor) -> torch.Tensor:
    """Spread envs over the tiles of a terrain, (num_envs, 3): first along its types, then its levels."""
    if terrain is None:
        return torch.zeros(len(env_ids), 3, device=env_ids.device)
    tiles = torch.as_tensor(terrain.origins, dtype=torch.float32, device=env_ids.device)
    num_levels, num_columns = tiles.shape[:2]
    return tiles[(env_ids // num_columns) % num_levels, env_ids % num_columns]
