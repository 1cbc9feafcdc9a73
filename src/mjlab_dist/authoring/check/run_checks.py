"""Run all checks of a task on a few envs."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from mjlab_dist.authoring.buffer_sizes import BufferGauge
from mjlab_dist.authoring.check.mirror_check import check_mirror
from mjlab_dist.authoring.check.physics_check import PhysicsProbe
from mjlab_dist.authoring.check.step_replay import is_library
from mjlab_dist.authoring.check.task_checks import (
    NUM_RECORDED,
    Check,
    check_buffers,
    check_episodes,
    check_finite,
    check_replay,
    check_resume,
    check_seeds,
    check_syncs,
    failed,
    measure_speed,
    passed,
)
from mjlab_dist.authoring.check.watched_env import RETURNED, Entry, WatchedEnv
from mjlab_dist.config import PpoConfig, SymmetryConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.physics import BUFFER_MARGIN
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.errors import UserError, named, with_notes
from mjlab_dist.launch.budget import total_num_envs
from mjlab_dist.learn.rank_state import random_state, restore_random_state
from mjlab_dist.messages import emit
from mjlab_dist.sim import start_warp

# Number of steps of a rollout. The first episode of every env ends within these steps.
NUM_STEPS = 200

# Number of steps that the resume check compares after it has loaded a state
NUM_RESUMED = 50

# Number of steps of an iteration. Curricula may change the task after each iteration.
ITERATION_STEPS = 25

# Commands and interval events are due for the first time within this many steps
TIMER_STEPS = 20

# Steps that the second set of envs takes in the resume check before it loads the state of the first set.
#
# A counter that a term keeps in Python then differs between the two sets. If the term does not save the counter, the
# check finds a difference.
EXTRA_STEPS = ITERATION_STEPS + 7


def check(config: TrainConfig) -> Iterator[Check]:
    """Check a task, and yield each result as soon as it is known.

    Afterwards, the global random generators have the same states as before.
    """
    yield from _with_envs(config, _checks)


def try_out(config: TrainConfig) -> Iterator[Check]:
    """Build a task, run steps, and check the physics: speeds, contacts, buffers, and that all numbers are finite."""
    yield from _with_envs(config, _trial)


def _with_envs(config: TrainConfig, checks: Callable[[TrainConfig, int], Iterator[Check]]) -> Iterator[Check]:
    validate(config)
    num_envs = total_num_envs(config, 1)
    # Capture the physics as a program, because the replay check refuses kernels outside of programs.
    # Simulate with MuJoCo Warp, because it has limits that MuJoCo's C code does not have.
    sim = dataclasses.replace(config.env.sim, capture="physics", engine="warp")
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, sim=sim))
    start_warp("cpu")
    before = random_state("cpu")
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield from checks(config, num_envs)
    finally:
        restore_random_state(before, "cpu")


def _trial(config: TrainConfig, num_envs: int) -> Iterator[Check]:
    emit("status", text="Building the envs...")
    subject = _Subject(config, num_envs, config.seed)
    result = subject.build()
    yield result
    if not result.passed:
        return
    emit("status", text=f"Stepping {num_envs} envs {NUM_STEPS} times with random actions...")
    error = subject.run()
    if warning := subject.physics.warning():
        emit("warning", text=warning)
    yield subject.physics.check()
    yield error or check_finite(subject.env, subject.trace, subject.num_resets)
    yield check_buffers(subject.env, subject.gauge.usage(), BUFFER_MARGIN)
    if error is None:
        yield check_episodes(subject.env)


def _checks(config: TrainConfig, num_envs: int) -> Iterator[Check]:
    # Terms: build envs and run a step
    first = _Subject(config, num_envs, config.seed)
    result = first.build()
    yield result
    if not result.passed:
        return

    # Two rollouts with the same seed, and one with a different seed. Other checks could fail because rows were dropped
    second, other = (_Subject(config, num_envs, seed) for seed in (config.seed, config.seed + 1))
    for subject in (first, second, other):
        error = subject.run()
        if error is not None:
            yield error
            return
        if not (buffers := check_buffers(subject.env, subject.gauge.usage())).passed:
            yield buffers
            return
    env = first.env
    yield first.physics.check()
    yield check_finite(env, first.trace, first.num_resets)
    yield check_seeds((first.trace, second.trace), other.trace, config.seed, first.draws)

    # Mirrored samples
    symmetry = config.agent.symmetry if isinstance(config.agent, PpoConfig) else SymmetryConfig()
    if symmetry.is_used and symmetry.func == SymmetryConfig().func:
        yield check_mirror(config.env)

    # Resuming, in envs with a different seed and age
    yield _check_resume(first, other)

    # Operations that wait for the device, and operations that differ between steps
    env.watch.place = RETURNED
    yield check_syncs(env, first.actions[:ITERATION_STEPS])
    env.watch.place = RETURNED
    yield check_replay(env, first.actions[:NUM_RECORDED])
    env.watch.place = RETURNED

    # Episodes without actions, buffers and speed
    yield check_episodes(env)
    yield check_buffers(env, first.gauge.usage())
    yield measure_speed(env, first.actions)


class _Subject:
    """Envs to check, and their rollout."""

    def __init__(self, config: TrainConfig, num_envs: int, seed: int) -> None:
        self._config, self._num_envs, self._seed = config, num_envs, seed
        self._env: WatchedEnv | None = None
        self.trace: list[Entry] = []
        self.num_resets = 0
        self.draws = False

    @property
    def env(self) -> WatchedEnv:
        assert self._env is not None
        return self._env

    def build(self) -> Check:
        """Build the envs, run a step, and set the timers of episodes, commands and events."""
        seed_generators(self._seed)
        drawn_from = torch.get_rng_state()
        try:
            env = self._env = WatchedEnv(self._config.env, self._num_envs)
            # Actions have their own generator, so that they are the same for every seed.
            generator = torch.Generator().manual_seed(0)
            shape = (NUM_STEPS + NUM_RESUMED + 1, env.num_envs, env.num_actions)
            self.actions = self._config.agent.init_std * torch.randn(shape, generator=generator)
            self.physics = PhysicsProbe(env)
            env.watched_step(1, self.actions[1])
        except Exception as error:  # noqa: BLE001 (terms are code of users, which may raise anything)
            return failed("terms", self._describe(error))
        self.draws = not torch.equal(torch.get_rng_state(), drawn_from)
        self.gauge = BufferGauge(env)
        _age(env)
        observed = ", ".join(f"{name} {tuple(env.get_observations()[name].shape)}" for name in env.cfg.observations)
        counts = f"{len(env.reward_names)} rewards, {len(env.cfg.terminations)} terminations, observations {observed}"
        return passed("terms", f"{counts}: all shapes and types are right")

    def run(self) -> Check | None:
        """Run the rollout; return the error that ended it, if any."""
        if self._env is None:
            result = self.build()
            if not result.passed:
                return result
        error = self.steps(range(2, NUM_STEPS + 1))
        self.physics.remove()
        return error

    def steps(self, indices: Sequence[int]) -> Check | None:
        """Run and trace steps; return the error that ended them, if any."""
        env = self.env
        try:
            for index in indices:
                env.watched_step(index, self.actions[index])
                self.gauge.read()
                self.num_resets += int((env.episode_length_buf == 0).sum())
                if index % ITERATION_STEPS == 0:
                    env.watched_iteration_end(index)
        except Exception as error:  # noqa: BLE001 (as above)
            return failed("rollout", self._describe(error))
        self.trace, env.watch.trace = env.watch.trace, []
        return None

    def _describe(self, error: Exception) -> str:
        """Return an error of a task in one line, with the term that caused it."""
        text = " ".join(str(error).split())
        if isinstance(error, UserError):
            return text
        place = self._env.watch.place if self._env is not None else RETURNED
        if place == RETURNED and hasattr(error, "__notes__"):
            # If the envs cannot be built, only the notes of the error name the term
            return named(type(error).__name__, with_notes(error))
        where = f"{place}: " if place != RETURNED else ""
        return f"{where}{named(type(error).__name__, text)} ({_line_of(error)})"


def _check_resume(subject: _Subject, other: _Subject) -> Check:
    # Save the state, then continue the rollout
    state, generators = subject.env.state(), random_state("cpu")
    indices = range(NUM_STEPS + 1, NUM_STEPS + NUM_RESUMED + 1)
    # Load the state into other envs, and run the same steps there
    error = subject.steps(indices) or other.steps(range(1, EXTRA_STEPS + 1))
    if error is None:
        other.env.load_state(state)
        restore_random_state(generators, "cpu")
        error = other.steps(indices)
    return error or check_resume(subject.trace, other.trace)


def _age(env: WatchedEnv) -> None:
    """Set timers so that all episodes end, all commands are sampled and all interval events happen within a rollout."""
    state = env.state()
    ages = torch.arange(1, env.num_envs + 1) * NUM_STEPS // (env.num_envs + 1)
    state["episode_length"] = (env.max_episode_length - ages).clamp_min(0)
    generator = torch.Generator().manual_seed(0)  # the same for every seed
    for name, tensor in state.items():
        if name.endswith(("left_s", "until_event_s")):
            state[name] = torch.rand(tensor.shape, generator=generator) * TIMER_STEPS * env.step_dt_s
    env.load_state(state)


def _line_of(error: Exception) -> str:
    """Return the file and line of the innermost call in an error's traceback that is not in a library."""
    line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        if not is_library(frame):
            line = f"{Path(frame.f_code.co_filename).name}:{number}"
    return line
