"""Measure the parts of an iteration: with a hook of the training loop, and with separate control steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch
from tensordict import TensorDict

from mjlab_dist.env import Env
from mjlab_dist.launch.verify.evidence import IterationTimes
from mjlab_dist.learn.capture import CapturedCall
from mjlab_dist.learn.clock import Clock, Mark
from mjlab_dist.learn.hooks import Hook
from mjlab_dist.learn.metrics import Sample
from mjlab_dist.learn.runner import Runner

P = ParamSpec("P")
T = TypeVar("T")

WARM_UP_STEPS = 10

# Number of control steps that are measured separately if the rollout is replayed from CUDA graphs
NUM_STEPS = 50

# Standard deviation of the random actions of these steps
ACTION_STD = 0.5


class Stopwatch:
    """Records the start and the end of every call of a function."""

    def __init__(self, clock: Clock) -> None:
        """Create a stopwatch that has not recorded any calls yet."""
        self._clock = clock
        self.marks: list[tuple[Mark, Mark]] = []

    def around(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function that calls the given function and records the start and the end of the call."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            start = self._clock.mark()
            result = function(*args, **kwargs)
            self.marks.append((start, self._clock.mark()))
            return result

        return timed

    def each_s(self) -> list[float]:
        """Return the seconds of each call; on a GPU, the work before the last mark must have finished."""
        return [self._clock.seconds(*pair) for pair in self.marks]


@dataclass(frozen=True)
class _Own:
    """Times of an iteration, as far as they are known at its end."""

    collect_s: float
    learn_s: float
    returns_s: float
    physics_s: float
    env_step_s: float
    # Times of collectives (exchanges between all ranks); the first one sums the previous iteration's metrics
    waits_s: list[float]


class Timing(Hook):
    """Hook that measures the parts of each iteration.

    A rollout that is replayed from CUDA graphs calls no Python functions. In this case, control steps are measured
    separately.
    """

    def __init__(self, num_steps: int) -> None:
        """Create the hook for a run that has not started yet."""
        self._num_steps = num_steps
        self._starts_s: list[float] = []
        self._own: list[_Own] = []
        self._watches: dict[str, Stopwatch] = {}

    def before_iteration(self, runner: Runner, iteration: int) -> None:  # noqa: ARG002 (every hook takes it)
        """Store the start time of the iteration. Before the first iteration, also start to time functions."""
        if not self._watches:
            names = ("physics", "env_step", "returns")
            self._watches = {name: Stopwatch(runner.alg.clock) for name in names}
            runner.alg.compute_returns = self._watches["returns"].around(runner.alg.compute_returns)
            if not runner.replays_rollouts:
                runner.env.step = self._watches["env_step"].around(runner.env.step)
                runner.env.sim.step = self._watches["physics"].around(runner.env.sim.step)
        for watch in self._watches.values():
            watch.marks.clear()
        self._starts_s.append(time.perf_counter())

    def after_iteration(self, runner: Runner, iteration: int, sample: Sample) -> None:  # noqa: ARG002
        """Store the times of the iteration."""
        seconds = {f"{name}_s": sum(watch.each_s()) for name, watch in self._watches.items()}
        waits_s = runner.alg.clock.last_waits_s
        self._own.append(_Own(collect_s=sample.collect_s, learn_s=sample.learn_s, waits_s=waits_s, **seconds))

    def iterations(self, runner: Runner) -> list[IterationTimes]:
        """Return the times of all iterations but the last one, whose end is not known."""
        steps_s = None
        if runner.replays_rollouts:
            steps_s = [self._num_steps * seconds for seconds in measure_steps(runner.env)]
        return list(self._times(steps_s))

    def _times(self, steps_s: Sequence[float] | None) -> Iterator[IterationTimes]:
        walls = [end - start for start, end in zip(self._starts_s, self._starts_s[1:], strict=False)]
        for wall_s, own, after in zip(walls, self._own, self._own[1:], strict=False):
            # The first collective sums the metrics of the previous iteration, so it counts as part of that iteration.
            waits = own.waits_s[1:]
            physics_s, env_step_s = (own.physics_s, own.env_step_s) if steps_s is None else steps_s
            yield IterationTimes(
                wall_s=wall_s,
                physics_s=physics_s,
                env_s=max(0.0, env_step_s - physics_s),
                policy_s=max(0.0, own.collect_s - own.returns_s - env_step_s),
                update_s=max(0.0, own.returns_s + own.learn_s - sum(waits)),
                waits_s=[*waits, after.waits_s[0]],
            )


def measure_steps(env: Env) -> tuple[float, float]:
    """Measure control steps with random actions, with the device's clock.

    Returns:
        The median time of a step's physics, and the mean time of a whole step that is replayed from a graph, in s.
    """
    device = str(env.device)
    actions = torch.zeros(env.num_envs, env.num_actions, device=device)

    def advance(_: TensorDict) -> TensorDict:
        actions.normal_(std=ACTION_STD)
        return env.step(actions)[0]

    def mean_s(call: Callable[[TensorDict], TensorDict], obs: TensorDict) -> float:
        clock = Clock(device)
        for _ in range(WARM_UP_STEPS):
            obs = call(obs)
        start = clock.mark()
        for _ in range(NUM_STEPS):
            obs = call(obs)
        end = clock.mark()
        if device != "cpu":
            torch.cuda.synchronize(device)
        return clock.seconds(start, end) / NUM_STEPS

    with torch.inference_mode():
        obs = env.get_observations()
        watch, step = Stopwatch(Clock(device)), env.sim.step
        env.sim.step = watch.around(step)
        try:
            mean_s(advance, obs)
        finally:
            env.sim.step = step
        physics_s = statistics.median(watch.each_s()[-NUM_STEPS:])
        return physics_s, mean_s(CapturedCall(advance, "the env's step", device, env.sim), obs)
