"""Count the collectives of a rank and check its synchronizer while it trains, and measure the parts of an iteration."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from tensordict import TensorDict

from mjlab_dist.distributed.group import gather
from mjlab_dist.distributed.local_sum import LocalSum
from mjlab_dist.distributed.synchronizer import Synchronizer
from mjlab_dist.env import Env
from mjlab_dist.launch.verify.evidence import IterationTimes
from mjlab_dist.learn.capture import CapturedCall
from mjlab_dist.learn.metrics import Clock, Mark, Sample
from mjlab_dist.learn.runner import Hook, Runner

# Substrings of the names of ProcessGroup's methods that communicate
COLLECTIVES = ("reduce", "gather", "broadcast", "scatter", "alltoall", "all_to_all", "barrier", "send", "recv")

# Typical KL divergence of an update
KL_SCALE = 0.01

P = ParamSpec("P")
T = TypeVar("T")

WARM_UP_STEPS = 10

# Number of control steps that are measured separately if the rollout is replayed from CUDA graphs
NUM_STEPS = 50

# Standard deviation of the random actions of these steps
ACTION_STD = 0.5


class Collectives:
    """Counter of this process's collectives: calls of the process group's methods, and sums over local sockets."""

    def __init__(self) -> None:
        """Start to count. Counting ends with the process."""
        self.count = 0
        for name in dir(dist.ProcessGroup):
            if any(part in name for part in COLLECTIVES) and not name.startswith("__"):
                setattr(dist.ProcessGroup, name, self._counted(getattr(dist.ProcessGroup, name)))
        LocalSum.sum_ = self._counted(LocalSum.sum_)

    def _counted(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def count(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            return collective(*args, **kwargs)

        return count


class WatchedSynchronizer:
    """A synchronizer that is compared with the mean over ranks, and whose collectives are counted.

    Attributes:
        keeps_equal: Value of this attribute of the watched synchronizer.
        difference: Largest relative difference between the first reduction and the mean over ranks. Differences of
            gradients are divided by the largest gradient. The difference of the KL divergence is divided by the mean
            KL divergence, or by :data:`KL_SCALE` if this mean is smaller. None if ranks keep their own gradients.
        num_calls: Number of reductions so far.
        num_collectives: Number of collectives in these reductions.
    """

    def __init__(self, synchronizer: Synchronizer, collectives: Collectives) -> None:
        """Watch a synchronizer."""
        self.keeps_equal = synchronizer.keeps_equal
        self.difference: float | None = None
        self.num_calls = 0
        self.num_collectives = 0
        self._synchronizer = synchronizer
        self._collectives = collectives

    def reduce(self, buffer: torch.Tensor) -> None:
        """Reduce the buffer. In the first call, also compare the result with the mean over ranks."""
        compares = self.keeps_equal and self.num_calls == 0
        own = buffer.clone() if compares else buffer
        before = self._collectives.count
        self._synchronizer.reduce(buffer)
        after = self._collectives.count
        self.num_collectives += after - before
        self.num_calls += 1
        if compares:
            self.difference = self._distance(buffer.double(), gather(own).double().mean(dim=0))
            self._collectives.count = after  # do not count the comparison's own collective

    def due(self, iteration: int) -> bool:
        """Return whether the watched synchronizer averages parameters after an iteration."""
        return self._synchronizer.due(iteration)

    def _distance(self, reduced: torch.Tensor, mean: torch.Tensor) -> float:
        apart = (reduced - mean).abs()
        scale = mean[:-1].abs().max() if len(mean) > 1 else mean.new_ones(())
        gradients = apart[:-1].max() / scale if len(mean) > 1 else mean.new_zeros(())
        # The KL divergence of the first mini-batch is nearly 0.
        kl = apart[-1] / mean[-1].abs().clamp(min=KL_SCALE)
        return torch.maximum(gradients, kl).item()


class Watch(Hook):
    """Hook that watches a runner from its first iteration on."""

    def __init__(self) -> None:
        """Start to count collectives."""
        self._collectives = Collectives()
        self._synchronizer: WatchedSynchronizer | None = None
        self._counts: list[tuple[int, int, int]] = []

    @property
    def difference(self) -> float | None:
        """See :class:`WatchedSynchronizer`; None before the first iteration."""
        return self._synchronizer.difference if self._synchronizer else None

    def before_iteration(self, runner: Runner, iteration: int) -> None:  # noqa: ARG002 (every hook takes it)
        """Watch the synchronizer from the first iteration on, and store the counts."""
        if self._synchronizer is None:
            self._synchronizer = WatchedSynchronizer(runner.alg.synchronizer, self._collectives)
            runner.alg.synchronizer = self._synchronizer
        watched = self._synchronizer
        self._counts.append((self._collectives.count, watched.num_collectives, watched.num_calls))

    def collectives(self) -> tuple[float, float]:
        """Return the collectives per mini-batch, and the other collectives per iteration.

        Collectives are counted from the start of the first iteration to the start of the last one.
        """
        total, reducing, calls = (end - start for start, end in zip(self._counts[0], self._counts[-1], strict=True))
        return reducing / max(1, calls), (total - reducing) / (len(self._counts) - 1)


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
