"""Figures that bench_links.py and bench_ranks.py measured, for scale_model.py."""

from __future__ import annotations

from dataclasses import dataclass

LINK_RANKS, LINK_ENVS, LINK_STEPS = 2, 256, 32
"""Ranks, envs per rank and steps of a rollout of the runs over links."""


@dataclass(frozen=True, kw_only=True)
class LinkRuns:
    """Training over a link, on a busy machine."""

    link: str
    """Name of the link in :data:`LINK_SUMS`."""
    setting: str
    """Setting that differs from the defaults."""
    steps_per_s: tuple[float, ...]
    """Median speed of each run."""
    waiting: tuple[float, ...]
    """Share of the time in collectives, of each run."""
    seconds: tuple[float, ...]
    """Seconds until each run reached a return of 900."""


@dataclass(frozen=True, kw_only=True)
class LinkSums:
    """Sums of two ranks over a link: medians of many sums."""

    bytes_per_s: float
    """Rate of the link."""
    round_trip_s: float
    """Round-trip time of a small packet, measured."""
    seconds: dict[tuple[int, int], float]
    """Seconds by number of values and bytes of a value."""


@dataclass(frozen=True, kw_only=True)
class RealRanks:
    """Bookkeeping of processes without envs."""

    ranks: int
    """Number of processes."""
    total_s: float
    """Time from the start to the end of the launch."""
    joined_s: float
    """Time of the last process to join the others."""
    metrics_ms: float
    """Time of the metrics of an iteration."""
    checkpoint_ms: float
    """Time of a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRanks:
    """Bookkeeping of rank 0 among simulated ranks: CPU times, means of two runs."""

    ranks: int
    events_ms: float
    metrics_ms: float
    checkpoint_ms: float


REAL_RANKS = (
    RealRanks(ranks=4, total_s=73.0, joined_s=0.51, metrics_ms=14.07, checkpoint_ms=130.6),
    RealRanks(ranks=16, total_s=96.4, joined_s=5.46, metrics_ms=150.70, checkpoint_ms=268.8),
    RealRanks(ranks=64, total_s=96.9, joined_s=13.34, metrics_ms=365.17, checkpoint_ms=707.7),
)

SIMULATED_RANKS = (
    SimulatedRanks(ranks=16, events_ms=0.07, metrics_ms=0.63, checkpoint_ms=5.35),
    SimulatedRanks(ranks=64, events_ms=0.19, metrics_ms=1.10, checkpoint_ms=6.85),
    SimulatedRanks(ranks=256, events_ms=0.65, metrics_ms=2.41, checkpoint_ms=16.1),
    SimulatedRanks(ranks=1024, events_ms=2.61, metrics_ms=7.32, checkpoint_ms=79.4),
)

LINK_SUMS = {
    "10 Gbit/s, 0.1 ms": LinkSums(
        bytes_per_s=10e9 / 8, round_trip_s=0.31e-3,
        seconds={
            (1, 4): 0.64e-3, (1, 2): 1.89e-3, (10_000, 4): 6.17e-3, (10_000, 2): 5.78e-3,
            (1_000_000, 4): 36.77e-3, (1_000_000, 2): 10.88e-3,
        },
    ),
    "1 Gbit/s, 1 ms": LinkSums(
        bytes_per_s=1e9 / 8, round_trip_s=2.19e-3,
        seconds={
            (1, 4): 3.16e-3, (1, 2): 2.55e-3, (10_000, 4): 8.11e-3, (10_000, 2): 7.91e-3,
            (1_000_000, 4): 41.12e-3, (1_000_000, 2): 24.97e-3,
        },
    ),
    "100 Mbit/s, 10 ms": LinkSums(
        bytes_per_s=1e8 / 8, round_trip_s=20.30e-3,
        seconds={
            (1, 4): 22.59e-3, (1, 2): 21.64e-3, (10_000, 4): 47.37e-3, (10_000, 2): 45.26e-3,
            (1_000_000, 4): 369.24e-3, (1_000_000, 2): 203.96e-3,
        },
    ),
}  # fmt: skip

OVERLAPS = {
    "10 Gbit/s, 0.1 ms": {"cartpole": 1.00, "humanoid": 1.04},
    "1 Gbit/s, 1 ms": {"cartpole": 1.16, "humanoid": 0.95},
    "100 Mbit/s, 10 ms": {"cartpole": 0.95, "humanoid": 0.89},
}
"""Time of a mini-batch with two buckets that overlap with the backward pass, relative to that with one sum after it."""

LINK_RUNS = (
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="default",
        steps_per_s=(
            27_194,
            19_441,
        ),
        waiting=(
            0.33,
            0.42,
        ),
        seconds=(
            35,
            106,
        ),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="bf16",
        steps_per_s=(
            16_646,
            8_797,
        ),
        waiting=(
            0.41,
            0.47,
        ),
        seconds=(
            50,
            70,
        ),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="period 4",
        steps_per_s=(
            10_253,
            4_206,
        ),
        waiting=(
            0.08,
            0.11,
        ),
        seconds=(
            135,
            337,
        ),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="period 16",
        steps_per_s=(
            16_700,
            4_222,
        ),
        waiting=(
            0.1,
            0.12,
        ),
        seconds=(
            70,
            213,
        ),
    ),
    LinkRuns(link="1 Gbit/s, 1 ms", setting="default", steps_per_s=(47_172,), waiting=(0.41,), seconds=(22,)),
    LinkRuns(link="1 Gbit/s, 1 ms", setting="bf16", steps_per_s=(39_811,), waiting=(0.38,), seconds=(48,)),
    LinkRuns(link="1 Gbit/s, 1 ms", setting="period 4", steps_per_s=(26_208,), waiting=(0.13,), seconds=(44,)),
    LinkRuns(link="1 Gbit/s, 1 ms", setting="period 16", steps_per_s=(28_064,), waiting=(0.16,), seconds=(39,)),
    LinkRuns(link="100 Mbit/s, 10 ms", setting="default", steps_per_s=(11_503,), waiting=(0.75,), seconds=(81,)),
    LinkRuns(link="100 Mbit/s, 10 ms", setting="bf16", steps_per_s=(11_184,), waiting=(0.71,), seconds=(101,)),
    LinkRuns(link="100 Mbit/s, 10 ms", setting="period 4", steps_per_s=(16_835,), waiting=(0.19,), seconds=(67,)),
    LinkRuns(link="100 Mbit/s, 10 ms", setting="period 16", steps_per_s=(8_473,), waiting=(0.13,), seconds=(132,)),
)
