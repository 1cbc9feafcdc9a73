"""Implementation of rsl_rl's VecEnv on top of :class:`~mjlab_dist.sim.Simulation`.

A step has no host synchronization, no indexing by masks and no branch on tensor values: CUDA graphs can record it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from mjlab_dist.config import EnvConfig
from mjlab_dist.config.checks import episode_steps
from mjlab_dist.env import kernels
from mjlab_dist.env.actions import Actions
from mjlab_dist.env.binding import Binder, CommandGroup, look_up
from mjlab_dist.env.episodes import Episodes, EpisodeTotals, NotFinite
from mjlab_dist.env.events import Events
from mjlab_dist.env.finding import Finder, all_joints
from mjlab_dist.env.frames import Base
from mjlab_dist.env.parameters import Parameters
from mjlab_dist.env.randomization import Randomizations, changed_fields
from mjlab_dist.env.term import Command, Curriculum, LazySensor, Sensor, Term, state_part
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Limits, Simulation, build_model, copy_state
from mjlab_dist.sim.terrain import Terrain, start_positions

_TermT = TypeVar("_TermT", bound=Term)


class StartState(NamedTuple):
    """Start state of an episode, before events change it."""

    qpos: torch.Tensor
    """Joint positions, (num_envs, nq)."""
    qvel: torch.Tensor
    """Joint velocities, (num_envs, nv)."""


class Env(Finder, VecEnv):
    """A batch of copies of one task on one device.

    Attributes:
        sim: The physics; terms read its state tensors.
        actions: The policy's latest output, (num_envs, num_actions).
        previous_actions: The output before that, (num_envs, num_actions).
        action_names: Name of each action: the name of its actuator, or ``<block>.<name>`` if it has another name.
        action_terms: The term of each block of actions.
        terminated: Envs whose episode is terminated in this step, (num_envs,) of bool.
        timed_out: Envs whose episode is cut off in this step, by the time limit or a term, (num_envs,) of bool.
        joints: Joints by name.
        reference: The start state before events.
        terrain: The terrain; None if the task has none.
        origins: Start position of each env's episode in the world frame, in m, (num_envs, 3); 0 without terrain.
        observation_groups: Observation groups by name.
        terms: All terms that are instances of classes, by their paths in the config, such as ``rewards.slip``.
        weights: Weights of the reward terms per control step, (num_terms,); a curriculum may change them.
        reward_scale: Factor that converts weights of the config to weights per control step.
        reward_names: Names of the reward terms, in the order of ``EpisodeTotals.terms``.
        termination_names: ``time_limit``, then names of the termination terms, as in ``EpisodeTotals.terminations``.
        metric_names: Column names of the metrics, such as ``metric/success``, in the order of
            ``EpisodeTotals.metrics``.
        parameters: Parameters of terms that curricula change.
        uncapturable_terms: Paths of the terms that cannot be part of a CUDA graph, such as ``rewards.slip``.
        step_dt_s: Simulated seconds per control step.
        before_resets: Function that each step calls after ``terminated`` and ``timed_out`` are known, and before the
            next episodes start; None for no function.
        env_ids: Ids of these envs in the whole run, (num_envs,) of int64, unique over all ranks. The env assigns
            terrain tiles by these ids, so that the assignment does not depend on the number of ranks.
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
            num_envs: Number of envs on this rank.
            device: ``cpu`` or ``cuda:<index>``.
            first_env_id: Id of the first env: r * n on rank r with n envs per rank.

        Raises:
            UserError: If the config names a function, an actuator or a model that does not exist.
        """
        # Sizes and device
        self.cfg = config
        self.num_envs = num_envs
        self.device = device
        self.before_resets: Callable[[], None] | None = None
        self.env_ids = torch.arange(first_env_id, first_env_id + num_envs, device=device)
        # Physics
        fields = changed_fields(config)
        self.sim = Simulation(build_model(config.sim), num_envs, device, config.sim, fields)
        self.step_dt_s = self.sim.dt_s
        self.max_episode_length = episode_steps(config, self.step_dt_s)
        # Start state, and the objects that terms look up
        self._everywhere = torch.ones(num_envs, dtype=torch.bool, device=device)
        self.sim.reset(self._everywhere)
        self.reference = StartState(self.sim.qpos.clone(), self.sim.qvel.clone())
        self.joints = all_joints(self.sim.model)
        self._frames = {}
        self._bases = {name: Base(self.sim, *joint) for name, joint in self.joints.items() if joint.is_free}
        self.terrain = Terrain(config.sim.terrain) if config.sim.terrain.parts else None
        self.origins = start_positions(self.terrain, self.env_ids)
        # Episodes
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.terminated, self.timed_out = torch.zeros(2, num_envs, dtype=torch.bool, device=device)
        self.reward_names = tuple(config.rewards)
        self.termination_names = ("time_limit", *config.terminations)
        self.reward_scale = self.step_dt_s if config.reward_scale == "dt" else 1.0
        self.weights = torch.tensor([one.weight * self.reward_scale for one in config.rewards.values()], device=device)
        self.parameters = Parameters(config, device)
        self._bind_terms()
        # Two kernels: one advances the clocks in a step, and one clears state of terms and env in a reset
        episodes, sizes = self._episodes, [self.max_episode_length, self.step_dt_s]
        clocks = [*sizes, self.episode_length_buf, episodes.steps, self._events.left_s]
        inputs = [*clocks, self.timed_out, self.terminated, episodes.limit_row]
        self._begin_step = self.sim.record_launch(kernels.begin_step, num_envs, inputs, changes_state=False)
        of_terms = [tensor for term in self._other_terms for tensor in term.cleared()]
        own = [self.episode_length_buf, *episodes.rewards]
        self._clear = self.sim.record_clearing([*self._actions.cleared(), *of_terms, *own])
        self.reset()

    def _bind_terms(self) -> None:
        config, binder = self.cfg, Binder(self)
        self.terms, self.uncapturable_terms = binder.memories, binder.uncapturable
        self._actions = Actions(config.actions, self, binder)
        self.action_names = self._actions.names
        self.action_terms = self._actions.terms
        self.num_actions = len(self.action_names)
        self.actions = self._actions.actions
        self.previous_actions = self._actions.previous
        self._randomizations = Randomizations(config, self.sim, self.parameters)
        self._sensors: dict[str, Sensor] = binder.make_classes("sensors", config.sensors, Sensor)
        self._commands = CommandGroup(self, config.commands, binder)
        self._rewards = binder.make_calls("rewards", config.rewards)
        self._terminations = binder.make_calls("terminations", config.terminations)
        self._metrics = binder.make_calls("metrics", config.metrics)
        self._curricula: dict[str, Curriculum] = binder.make_classes("curricula", config.curricula, Curriculum)
        # Events; the startup events run here
        self._events = Events(self, config.events, binder, self._randomizations.intervals)
        self._events.start_up(self, self._everywhere)
        self._randomizations.end_startup()
        # Observations, after sensors and commands: the constructor evaluates observation terms, which may read these
        self.observation_groups = {
            group: binder.make_observations(group, terms) for group, terms in config.observations.items()
        }
        # Episodes come after all terms that return metrics
        self._measurements, metrics = binder.measurements(config.metrics)
        self.metric_names = tuple(name for name, _ in metrics)
        self._episodes = Episodes(
            self.sim,
            timed_out=self.timed_out,
            terminated=self.terminated,
            rewards=self.reward_names,
            terminations=[(name, term.time_out) for name, term in config.terminations.items()],
            metrics=metrics,
            weights=self.weights,
        )
        self._not_finite = NotFinite(self.sim, self._episodes)
        # Methods of terms that steps and resets call
        self._sensor_updates = [binder.outside_of_graphs(sensor.update) for sensor in self._sensors.values()]
        starting = [sensor for sensor in self._sensors.values() if type(sensor).start is not Sensor.start]
        self._sensor_starts = [binder.outside_of_graphs(sensor.start) for sensor in starting]
        self._episode_ends = [binder.outside_of_graphs(one.episode_ends) for one in self._curricula.values()]
        self._other_terms = [one for one in self.terms.values() if not isinstance(one, Command)]
        self._resets = [binder.outside_of_graphs(term.reset) for term in self._other_terms]

    def reset(self) -> TensorDict:
        """Start a new episode in every env and return the first observations."""
        self._start_episodes(self._everywhere)
        self._episodes.count_all(True)
        return self._observe(self._everywhere)

    def stagger(self) -> None:
        """Randomize episode ages so that episodes do not all end in the same step.

        The first, shortened episodes are excluded from the totals, because their returns would be too small.
        """
        self.episode_length_buf.random_(0, self.max_episode_length)
        self._episodes.count_all(False)

    def get_observations(self) -> TensorDict:
        """Return the observations of the latest step or reset: a tensor (num_envs, width) per group."""
        return self._observed

    def sensor(self, name: str, kind: type[_TermT]) -> _TermT:
        """Return a sensor of the task. Call this in every step, because a :class:`LazySensor` measures in this call.

        Args:
            name: Its name in ``env.sensors``.
            kind: Its class.

        Raises:
            UserError: If there is no such sensor, or it has a different class.
        """
        found = look_up("sensor", name, self._sensors)
        if not isinstance(found, kind):
            raise UserError(f"sensor {name}: has the class {type(found).__name__}; {kind.__name__} is required")
        if isinstance(found, LazySensor):
            found.refresh(self)
        return found

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Advance every env by one control step; envs that are done start a new episode in the same step.

        With ``nan_policy`` reset, envs with a non-finite value in the physics or a reward term are done too: they count
        as terminated, their reward is 0, and totals exclude their episode. A non-finite value in an observation is
        replaced by 0, so that no policy reads it, and the env is done in the next step. Observation terms are evaluated
        once per step, after the resets: for an env that is done, they describe the start of its next episode.

        Args:
            actions: The policy's output, (num_envs, num_actions).

        Returns:
            Observations (after resets), rewards (num_envs,), dones (num_envs,) of bool, and extras. ``time_outs`` in
            extras, (num_envs,) of bool, is True for an env whose episode was cut off and not terminated in this step.
        """
        # Actions, physics and clocks
        self._actions.apply(actions)
        self.sim.step()
        self._begin_step()

        # Sensors, before the terms that read them
        for update in self._sensor_updates:
            update(self)

        # Terminations, then rewards and metrics, because these may read terminations
        episodes = self._episodes
        episodes.end_by_terms([termination(self) for termination in self._terminations])
        rewards = [term(self) for term in self._rewards]
        metrics = [metric(self) for metric in self._metrics]
        for measure in self._measurements:
            metrics += measure().values()
        episodes.store(rewards, metrics)

        # Ended episodes: before the resets, because curricula read their last state
        if self.cfg.nan_policy == "reset":
            self._not_finite.find()
        episodes.end_step()
        reward, done, time_outs = (tensor.clone() for tensor in (episodes.reward, episodes.done, episodes.time_outs))
        for episode_ends in self._episode_ends:
            episode_ends(self, done)

        if self.before_resets is not None:
            self.before_resets()

        # New episodes and commands; then interval events, which may read the new start states
        self._start_episodes(done)
        self._events.happen_at_intervals(self)

        return self._observe(done), reward, done, {"time_outs": time_outs}

    def end_iteration(self, totals: EpisodeTotals) -> None:
        """Update curricula at the end of an iteration.

        Args:
            totals: Totals of the episodes that ended in the iteration, over all ranks.
        """
        for curriculum in self._curricula.values():
            curriculum.iteration_ends(self, totals)

    def curriculum_metrics(self) -> dict[str, torch.Tensor]:
        """Return the progress of curricula by name, as scalars: means over the envs of this rank."""
        return {
            f"{name}/{metric}": value
            for name, curriculum in self._curricula.items()
            for metric, value in curriculum.metrics().items()
        }

    def num_bytes(self) -> int:
        """Return the device memory of the physics and the env in bytes, without temporary tensors of a step."""
        known = [value for value in (*vars(self).values(), *self.reference) if isinstance(value, torch.Tensor)]
        known += [self._events.left_s, *self._remembered().values()]
        held = {tensor.data_ptr(): tensor.nbytes for tensor in known}
        return self.sim.num_bytes() + self._episodes.num_bytes() + sum(held.values())

    def pop_episode_totals(self) -> EpisodeTotals:
        """Return sums over the episodes that ended since the previous call."""
        return self._episodes.pop_totals()

    def episode_outcomes(self) -> dict[str, torch.Tensor]:
        """Return termination reasons and metrics of the running episodes by name, (num_envs,) of float32 each.

        ``termination/<reason>`` is 1 if the reason held in the latest step. Metrics cover the steps so far. If an
        env's episode ended in the latest step, the values belong to the ended episode.
        """
        names = (*(f"termination/{name}" for name in self.termination_names), *self.metric_names)
        return dict(zip(names, self._episodes.outcomes(), strict=True))

    def reward_terms(self) -> torch.Tensor:
        """Return the weighted reward of each term in the latest step, (num_terms, num_envs)."""
        return self.weights.unsqueeze(1) * self._episodes.earned

    def pop_nan_resets(self) -> torch.Tensor:
        """Return the number of resets by ``nan_policy`` since the previous call, a scalar; 0 if the policy is stop."""
        resets = self._not_finite.num_resets.clone()
        self._not_finite.num_resets.zero_()
        return resets

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the complete state of these envs, except the states of random number generators.

        Returns:
            Tensors by name, on the env's device. Most tensors have the shape (num_envs, ...). ``totals``,
            ``outcome_totals`` and ``nan_resets`` are sums over envs, and the state of a curriculum may have any shape.
        """
        return {name: tensor.clone() for name, tensor in self._held().items()}

    def load_state(self, state: Mapping[str, torch.Tensor], *, checked: bool = True) -> None:
        """Load the state of envs of the same task. Poses and sensors are updated in the next step.

        Args:
            state: The result of :meth:`state`, on any device.
            checked: Whether to compare integers with their limits, which waits for the device. Set it to False only
                for a state that these envs returned.

        Raises:
            UserError: If the state is from another task, has a different number of envs, or contains an integer outside
                of its limits. Nothing is changed then.
        """
        copy_state(state, self._held(), self.limits() if checked else {})

    def limits(self) -> dict[str, Limits]:
        """Return the limits of integers in :meth:`state` by name: minimum and maximum. See :meth:`Term.limits`."""
        parts = {
            "sim": self.sim.limits(),
            "actions": self._actions.limits(),
            **{f"observations.{name}": group.limits() for name, group in self.observation_groups.items()},
            **{where: term.limits() for where, term in self.terms.items()},
        }
        of_parts = {f"{part}.{name}": one for part, limits in parts.items() for name, one in limits.items()}
        return {**of_parts, "episode_length": (0, math.inf), "nan_resets": (0, math.inf)}

    def resume_curricula(self, states: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Restore curricula from a run with a different number of ranks or envs. Curricula new to the task start fresh.

        Args:
            states: The result of :meth:`state` on each rank of the saved run, on any device.

        Raises:
            UserError: If a saved integer of a curriculum is outside of its limits.
        """
        for name, curriculum in self._curricula.items():
            saved = [
                {key: value.to(self.device) for key, value in state_part(state, f"curricula.{name}.").items()}
                for state in states
            ]
            if saved and all(one.keys() == curriculum.state().keys() for one in saved):
                curriculum.resume(saved)

    def observation_columns(self) -> dict[str, dict[str, slice]]:
        """Return the columns of each term in each observation group."""
        return {name: group.columns for name, group in self.observation_groups.items()}

    def _held(self) -> dict[str, torch.Tensor]:
        return {
            **{f"sim.{name}": tensor for name, tensor in self.sim.state().items()},
            **{f"model.{name}": tensor for name, tensor in self.sim.fields.items()},
            **self._remembered(),
            "actions": self.actions,
            "previous_actions": self.previous_actions,
            "episode_length": self.episode_length_buf,
            **self._episodes.state(),
            "until_event_s": self._events.left_s,
            "origins": self.origins,
            "nan_resets": self._not_finite.num_resets,
        }

    def _remembered(self) -> dict[str, torch.Tensor]:
        """Return the state of actions, observations, randomizations and terms."""
        parts = {
            "randomized": self._randomizations.state(),
            "actions": dict(self._actions.state()),
            **{f"observations.{name}": dict(group.state()) for name, group in self.observation_groups.items()},
            **{where: term.state() for where, term in self.terms.items()},
        }
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def _start_episodes(self, mask: torch.Tensor) -> None:
        # Physics and models
        self.sim.reset(mask)
        self._randomizations.reset(mask)
        # Commands, before the events that may read them
        self._commands.resample(self, mask)
        # Reset events, which change the start states
        self._events.reset(self, mask)
        # State of actions, terms and observations, and times of the next events
        self._actions.reset()
        for reset in self._resets:
            reset(mask)
        for group in self.observation_groups.values():
            group.reset(mask)
        self._events.draw_times(mask)
        self._clear()
        self._commands.follow(self)

    def _observe(self, mask: torch.Tensor) -> TensorDict:
        self._randomizations.update_constants()
        if self.cfg.sim.forward_before_observation:
            self.sim.forward()
            for start in self._sensor_starts:
                start(self, mask)
        groups = {name: group.observe() for name, group in self.observation_groups.items()}
        if self.cfg.nan_policy == "reset":
            groups = self._not_finite.replace(groups)
        self._observed = TensorDict(groups, batch_size=[self.num_envs], device=self.device)
        return self._observed
