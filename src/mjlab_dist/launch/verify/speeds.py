"""Compute speeds, efficiencies and shares of the time of runs with different numbers of ranks. Imports no torch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mjlab_dist.launch.verify.evidence import Evidence, IterationTimes

# weak: all runs have the same number of envs per rank. strong: all runs have the same total number of envs.
Mode = Literal["weak", "strong"]

# Number of iterations at the start that are not counted, because they warm up caches and choose kernels
SKIPPED = 2


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of the time of an iteration, means over ranks. They add up to 1."""

    physics: float
    # Observations, rewards, resets and everything else of a control step
    env: float
    # Actions of the policy, and storing the samples
    policy: float
    update: float
    # Collectives (exchanges of data between all ranks), after the last rank has arrived
    communication: float
    # Collectives, before the last rank has arrived: ranks wait for the slowest one
    waiting: float
    # Metrics, loggers, and the rest
    other: float


@dataclass(frozen=True, kw_only=True)
class Reached:
    """When a run first reached a return."""

    # Seconds of training
    seconds: float
    # Control steps of all ranks
    steps: int


@dataclass(frozen=True, kw_only=True)
class Round:
    """Figures of one run."""

    num_envs: int
    # Control steps of all ranks, per second of the whole training loop; median over iterations
    steps_per_s: float
    # Shares of the time
    shares: Shares
    # Seconds per iteration in which each rank computes, without collectives; medians over iterations
    computing_s: list[float]
    # Fraction of memory in use, on the GPU where it is highest. On CPUs: fraction of a machine's memory that all its
    # ranks use, on the machine where it is highest.
    memory_share: float
    # When the run reached the return; None if it did not, or if no return was given
    reached: Reached | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Figures for one number of ranks: medians over all rounds."""

    num_ranks: int
    # Envs per rank
    num_envs: int
    # Control steps of all ranks per second
    steps_per_s: float
    # Speed divided by the speed of one rank, in the same round
    speed_up: float
    # Speed-up divided by the number of ranks
    efficiency: float
    # Shares of the time, divided by their sum so that they add up to 1
    shares: Shares
    # The run of each round, in the order of the rounds
    rounds: list[Round]


@dataclass(frozen=True, kw_only=True)
class Speeds:
    """Speeds of different numbers of ranks."""

    # A row per number of ranks, from one rank to all
    rows: list[Row]
    # Whether all ranks are faster than one
    verdict: str
    # Limits of the run with the most ranks. Each text names a flag that helps, if there is one.
    limits: list[str]


def as_round(ranks: Sequence[Evidence], num_steps: int, reached: Reached | None) -> Round:
    """Return the figures of one run."""
    iterations = [list(each) for each in zip(*(rank.iterations[SKIPPED:] for rank in ranks), strict=True)]
    samples = sum(rank.info.num_envs for rank in ranks) * num_steps
    return Round(
        num_envs=ranks[0].info.num_envs,
        steps_per_s=samples / statistics.median(max(one.wall_s for one in of_ranks) for of_ranks in iterations),
        shares=_shares(iterations),
        computing_s=[statistics.median(map(_computing_s, of_rank)) for of_rank in zip(*iterations, strict=True)],
        memory_share=_memory_share(ranks),
        reached=reached,
    )


def as_row(num_ranks: int, rounds: Sequence[Round], alone: Sequence[Round]) -> Row:
    """Return the figures for one number of ranks, from its run and the run of one rank in each round."""
    speed_up = statistics.median(one.steps_per_s / other.steps_per_s for one, other in zip(rounds, alone, strict=True))
    each = [dataclasses.asdict(one.shares) for one in rounds]
    middle = {name: statistics.median(shares[name] for shares in each) for name in each[0]}
    return Row(
        num_ranks=num_ranks,
        num_envs=rounds[0].num_envs,
        steps_per_s=statistics.median(one.steps_per_s for one in rounds),
        speed_up=speed_up,
        efficiency=speed_up / num_ranks,
        shares=Shares(**{name: share / sum(middle.values()) for name, share in middle.items()}),
        rounds=list(rounds),
    )


def _shares(iterations: Sequence[Sequence[IterationTimes]]) -> Shares:
    """Return the shares of the time, over all ranks and iterations."""
    num_ranks = len(iterations[0])
    parts: dict[str, float] = dict.fromkeys(("physics", "env", "policy", "update", "communication", "waiting"), 0.0)
    for of_ranks in iterations:
        for one in of_ranks:
            for name in ("physics", "env", "policy", "update"):
                parts[name] += getattr(one, f"{name}_s")
        # The rank that arrives last at a collective does not wait: its time is the duration of the collective itself.
        for waits in zip(*(one.waits_s for one in of_ranks), strict=True):
            parts["communication"] += num_ranks * min(waits)
            parts["waiting"] += sum(waits) - num_ranks * min(waits)
    parts["other"] = max(0.0, sum(one.wall_s for of_ranks in iterations for one in of_ranks) - sum(parts.values()))
    total = sum(parts.values())
    return Shares(**{name: seconds / total for name, seconds in parts.items()})


def _computing_s(times: IterationTimes) -> float:
    return times.physics_s + times.env_s + times.policy_s + times.update_s


def _memory_share(ranks: Sequence[Evidence]) -> float:
    if ranks[0].info.device != "cpu":
        return max(rank.memory_mb / 1e3 / max(1, rank.info.memory_gb) for rank in ranks)
    used: dict[str, float] = {}
    for rank in ranks:
        used[rank.info.host] = used.get(rank.info.host, 0.0) + rank.memory_mb / 1e3 / max(1, rank.info.memory_gb)
    return max(used.values())
