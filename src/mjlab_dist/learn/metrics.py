"""Metrics of an iteration. One collective sums them over all ranks; returns are means over the newest episodes.

Times are measured on the device's stream, without waiting for the device. Warnings say when ranks wait for others, or
when memory is nearly full.
"""

from __future__ import annotations

import collections
import contextlib
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psutil
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.group import sum_over_ranks
from mjlab_dist.distributed.rank import Rank, in_words
from mjlab_dist.env import EpisodeTotals
from mjlab_dist.errors import byte_size
from mjlab_dist.machine.memory import free_cpu_bytes
from mjlab_dist.messages import emit

# A timestamp: host seconds, or an event in the device's stream
Mark = float | torch.cuda.Event

# A row of metrics.jsonl. Values that are not known yet are None.
Row = dict[str, float | int | None]

# Minimum number of episodes in the mean return and the mean length. The newest episodes are used. If fewer episodes
# have ended, all are used.
WINDOW_EPISODES = 100

# Number of iterations over which the waiting times of ranks are averaged
WINDOW = 50

# Maximum share of a rank's time spent waiting for other ranks; above this share, a warning is printed
MAX_WAITING = 0.25

# Minimum share of free memory; below this share, a warning is printed
MIN_FREE = 0.05

# Iterations between checks of the memory
MEMORY_INTERVAL = 10


class Clock:
    """Records timestamps, and sums the time that this rank spends in collectives (operations that all ranks join).

    Attributes:
        last_waits_s: Seconds of each collective that the last call of :meth:`pop_wait_s` counted.
    """

    def __init__(self, device: str) -> None:
        """Create a clock that has counted no collectives."""
        self._on_gpu = device != "cpu"
        self._waits: list[tuple[Mark, Mark]] = []
        self.last_waits_s: list[float] = []

    def mark(self) -> Mark:
        """Record a timestamp on the device's stream."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        """Return the seconds between two timestamps; on a GPU, the device must already have reached both."""
        if isinstance(start, float) and isinstance(end, float):
            return end - start
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1000

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside a ``with`` block as waiting for other ranks."""
        start = self.mark()
        yield
        self._waits.append((start, self.mark()))

    def pop_wait_s(self) -> float:
        """Return the seconds waited since the last call. On a GPU, wait for the device before calling this."""
        self.last_waits_s = [self.seconds(start, end) for start, end in self._waits]
        self._waits.clear()
        return sum(self.last_waits_s)


def memory_mb(device: torch.device) -> float:
    """Return the memory in use, in MB (10^6 bytes): of the GPU, or of this process on a CPU."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return (total - free) / 1e6
    return psutil.Process().memory_info().rss / 1e6


class Sample(NamedTuple):
    """Measurements of one rank in one iteration. Tensors are scalars on its device unless stated otherwise."""

    # Totals of the episodes that ended
    totals: EpisodeTotals
    # Metrics of the curricula by name: means over this rank's envs
    curricula: dict[str, torch.Tensor]
    # Mean reward per control step
    reward: torch.Tensor
    # Columns that depend on the algorithm, such as loss/value and kl, the KL divergence of the updated policy from the
    # one that collected the data
    measured: dict[str, torch.Tensor]
    learning_rate: torch.Tensor
    # Mean standard deviation of the actions
    action_std: torch.Tensor
    # Squared Euclidean distance of this rank's parameters from their mean over ranks, before they are averaged; NaN in
    # an iteration that does not average them.
    spread: torch.Tensor
    # Number of envs whose contacts or constraints have exceeded their buffers at any time
    overflows: torch.Tensor
    # Seconds of the rollout
    collect_s: float
    # Seconds of the update
    learn_s: float
    # Seconds that this rank spent in collectives since the last sample
    wait_s: float
    # Number of envs whose physics, observations, actions, values or rewards were not finite
    not_finite: torch.Tensor
    # Number of resets because of numbers that were not finite
    nan_resets: torch.Tensor
    # Whether this rank has received a request to stop. If so, all ranks stop after this iteration.
    wants_stop: bool
    # Whether a checkpoint is due by the clock of rank 0; False on the other ranks
    wants_save: bool


class Outcome(NamedTuple):
    """Result of an iteration, the same on every rank."""

    # Metrics of the iteration
    row: Row
    # Totals of the episodes that ended on any rank; tensors on the device
    totals: EpisodeTotals
    stop: bool
    # Whether a checkpoint is due by the clock of rank 0
    save: bool
    # Ranks with envs whose numbers are not finite
    not_finite: list[int]
    # Metrics of each rank, if they are logged
    ranks: list[Row]
    # For each rank, the share of the iteration that it spent in collectives
    wait_shares: list[float]


class Metrics:
    """Computes rows from the samples of all ranks. All ranks compute the same rows."""

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        num_samples: int,
        episode_names: Sequence[str],
        num_parameters: int,
        clock: Clock,
        log_ranks: bool = False,
        iteration: int = 0,
        counters: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the counters, or restore them."""
        before = counters or {"total_steps": 0, "elapsed_s": 0.0, "episodes": []}
        self._rank = rank
        self._world_size = world_size
        self.num_samples = num_samples * world_size  # of a rollout, over all ranks
        self._episode_names = tuple(episode_names)
        self._num_parameters = num_parameters
        self._clock = clock
        self._log_ranks = log_ranks
        # Sums of the newest episodes, one list per iteration. Saved sums of a task with other columns are dropped.
        width = 2 + len(self._episode_names)
        self._episodes: collections.deque[list[float]] = collections.deque(
            sums for sums in before["episodes"] if len(sums) == width
        )
        self._started = time.monotonic() - before["elapsed_s"]
        self.total_steps: int = before["total_steps"]
        self._iteration = iteration

    def counters(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs: plain values, the same on every rank except for the time."""
        return {
            "total_steps": self.total_steps,
            "elapsed_s": time.monotonic() - self._started,
            "episodes": list(self._episodes),
        }

    def outcome(self, iteration: int, sample: Sample) -> Outcome:
        """Combine the measurements of all ranks into metrics, and into decisions such as whether to save or to stop.

        This takes one collective and one transfer to the host.
        """
        # Sums over ranks, and over the newest episodes
        sums, totals = self._sum(sample)
        mean = {name: total / self._world_size for name, total in sums.items()}
        self._episodes.append([sums["episodes"], sums["steps"], *(sums[name] for name in self._episode_names)])
        while sum(e[0] for e in self._episodes) - self._episodes[0][0] >= WINDOW_EPISODES:
            self._episodes.popleft()
        count, length, *rest = (sum(column) for column in zip(*self._episodes, strict=True))
        means = {name: total / count if count else None for name, total in zip(self._episode_names, rest, strict=True)}
        rewards = [mean for name, mean in means.items() if name.startswith("reward/") and mean is not None]
        # Times: an iteration takes as long as its slowest rank
        collect_s, learn_s, wait_s = (
            [sums[f"{name}/{r}"] for r in range(self._world_size)] for name in ("collect_s", "learn_s", "wait_s")
        )
        iteration_s = max(map(sum, zip(collect_s, learn_s, strict=True)))
        # Row of metrics.jsonl
        spread = math.sqrt(mean["spread"] / self._num_parameters)
        self.total_steps += self.num_samples * (iteration - self._iteration)
        self._iteration = iteration
        row: Row = {
            "iteration": iteration,
            "total_steps": self.total_steps,
            "elapsed_s": time.monotonic() - self._started,
            "steps_per_s": self.num_samples / iteration_s,
            "collect_s": max(collect_s),
            "learn_s": max(learn_s),
            "wait_s": sum(wait_s) / self._world_size,
            "wait_share": sum(wait_s) / self._world_size / iteration_s,
            "episodes": round(sums["episodes"]),
            "mean_return": sum(rewards) if count else None,
            "mean_episode_length": length / count if count else None,
            "mean_step_reward": mean["reward"],
            **means,
            **{f"num_{name}": round(sums[name]) for name in means if name.startswith("termination/")},
            **{name: mean[name] for name in sample.measured},
            **{f"curriculum/{name}": mean[f"curriculum/{name}"] for name in sample.curricula},
            "learning_rate": mean["learning_rate"],
            "action_std": mean["action_std"],
            "parameter_spread": None if math.isnan(spread) else spread,
            "overflowed_envs": round(sums["overflows"]),
            "nan_resets": round(sums["nan_resets"]),
        }
        return Outcome(
            row,
            totals=totals,
            stop=sums["stop"] > 0,
            save=sums["save"] > 0,
            not_finite=[r for r in range(self._world_size) if sums[f"not_finite/{r}"]],
            ranks=[self._rank_row(r, iteration, sums) for r in range(self._world_size)] if self._log_ranks else [],
            wait_shares=[seconds / iteration_s for seconds in wait_s],
        )

    def _rank_row(self, rank: int, iteration: int, sums: Mapping[str, float]) -> Row:
        """Return the metrics of one rank."""
        own = {name.removesuffix(f"/{rank}"): total for name, total in sums.items() if name.endswith(f"/{rank}")}
        return {
            "iteration": iteration,
            "rank": rank,
            "steps_per_s": self.num_samples / self._world_size / (own["collect_s"] + own["learn_s"]),
            **{name: own[name] for name in ("collect_s", "learn_s", "wait_s")},
            "episodes": round(own["episodes"]),
            "mean_return": own["return"] / own["episodes"] if own["episodes"] else None,
            "memory_mb": own["memory_mb"],
        }

    def _sum(self, sample: Sample) -> tuple[dict[str, float], EpisodeTotals]:
        """Return all sums over ranks by name. Also return the totals of the episodes as tensors.

        Per-rank quantities have one slot per rank. Each rank fills only its own slot and leaves 0 in the others, so the
        sum contains all ranks' values.
        """
        device = sample.reward.device
        # Per-rank tensors, and numbers of the host
        of_rank = {"not_finite": sample.not_finite}
        numbers = {"collect_s": sample.collect_s, "learn_s": sample.learn_s, "wait_s": sample.wait_s}
        if self._log_ranks:
            of_rank |= {"episodes": sample.totals.episodes, "return": sample.totals.terms.sum()}
            numbers["memory_mb"] = memory_mb(device)
        ranks = [(r, r == self._rank) for r in range(self._world_size)]
        on_host = {f"{name}/{r}": number * own for name, number in numbers.items() for r, own in ranks}
        on_host |= {"stop": float(sample.wants_stop), "save": float(sample.wants_save)}
        # Tensors, without waiting for the device
        of_episodes = (sample.totals.terms, sample.totals.terminations, sample.totals.metrics)
        scalars: dict[str, torch.Tensor] = {
            "episodes": sample.totals.episodes,
            "steps": sample.totals.steps,
            **dict(zip(self._episode_names, torch.cat(of_episodes), strict=True)),
            **{f"unweighted/{i}": t for i, t in enumerate(sample.totals.unweighted)},
            "reward": sample.reward,
            **{f"curriculum/{name}": value for name, value in sample.curricula.items()},
            **sample.measured,
            "learning_rate": sample.learning_rate,
            "action_std": sample.action_std,
            "spread": sample.spread,
            "overflows": sample.overflows,
            "nan_resets": sample.nan_resets,
            **{f"{name}/{r}": t if own else torch.zeros_like(t) for name, t in of_rank.items() for r, own in ranks},
        }
        # Sum everything in one collective, and transfer the result once
        on_device = torch.stack([s.detach().double() for s in scalars.values()])
        packed = torch.cat([on_device, torch.tensor(list(on_host.values()), dtype=torch.float64, device=device)])
        with self._clock.waiting():
            sum_over_ranks(packed)
        sizes = [1, 1, *map(len, of_episodes), len(sample.totals.unweighted)]
        episodes, steps, terms, terminations, metrics, unweighted = packed[: sum(sizes)].float().split(sizes)
        totals = EpisodeTotals(episodes[0], steps[0], terms, unweighted, terminations, metrics)
        return dict(zip((*scalars, *on_host), packed.tolist(), strict=True)), totals


class Advice:
    """Checks each iteration of a run, and prints warnings with the flags that help."""

    def __init__(self, config: TrainConfig, rank: Rank, device: str, num_envs: int) -> None:
        """Start without measurements; ``num_envs`` is the number of envs of this rank."""
        self._config, self._rank, self._device, self._num_envs = config, rank, device, num_envs
        self._waiting: list[Sequence[float]] | None = [] if rank.is_main and rank.world_size > 1 else None
        # CPU ranks of one machine share its memory, so only the first of them checks it.
        self._watches_memory = device != "cpu" or rank.local_rank == 0

    def check(self, iteration: int, wait_shares: Sequence[float]) -> None:
        """Check an iteration, and print a warning if there is a reason for one."""
        if self._waiting is not None:
            self._waiting.append(wait_shares)
            if len(self._waiting) == WINDOW:
                means = [statistics.fmean(of_rank) for of_rank in zip(*self._waiting, strict=True)]
                text = waiting_advice(means, self._config)
                self._waiting = [] if text is None else None
                if text is not None:
                    emit("warning", text=text)
        if self._watches_memory and iteration % MEMORY_INTERVAL == 0:
            text = self._memory_advice()
            self._watches_memory = text is None
            if text is not None:
                emit("warning", text=text)

    def _memory_advice(self) -> str | None:
        """Return advice if the memory is nearly full; None otherwise."""
        # Free memory, memory that the run can use in total, and their place. Rank 0 prints the warnings of all ranks,
        # so "this machine" is the machine of rank 0.
        rank = self._rank
        if self._device != "cpu":
            free, total = torch.cuda.mem_get_info(self._device)
            place = "the GPU" if rank.world_size == 1 else f"the GPU of rank {rank.rank}"
        else:
            # A container may get only a part of the machine's memory, so the total is the sum of the free memory and
            # the memory that the ranks of this run use. All ranks use about as much as this rank.
            free = free_cpu_bytes()
            total = free + 1e6 * memory_mb(torch.device("cpu")) * rank.local_world_size
            place = "this machine" if rank.is_main else f"the machine of rank {rank.rank}"
        if free > MIN_FREE * total:
            return None
        left = f"only {byte_size(free)} of memory is left on {place}"
        return f"{left}; the run may fail; lower --num-envs (now {self._num_envs})"


def waiting_advice(shares: Sequence[float], config: TrainConfig) -> str | None:
    """Return advice if a rank waits for others too long; None otherwise."""
    waiting = [rank for rank, share in enumerate(shares) if share > MAX_WAITING]
    if not waiting:
        return None
    longest = max(shares)
    if len(waiting) == len(shares):
        problem = f"all ranks spend more than {MAX_WAITING:.0%} of their time in collectives (maximum: {longest:.0%})"
        fix = f"raise --sync.period (now {config.sync.period}) to have fewer collectives, or raise --num-envs"
    else:
        slowest = min(range(len(shares)), key=shares.__getitem__)
        verb = "waits" if len(waiting) == 1 else "wait"
        problem = f"{in_words(waiting)} {verb} for rank {slowest}, which is slowest, up to {longest:.0%} of the time"
        fix = f"end other programs on rank {slowest}'s device, choose equal GPUs with --gpu-ids, or raise --sync.period"
    return f"{problem}; {fix}; mjlab-dist verify {config.task} shows where the time is spent"
