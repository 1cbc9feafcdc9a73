"""Figures that scale_model.py uses. They were measured with bench_links.py and bench_ranks.py."""

from __future__ import annotations

from dataclasses import dataclass

LINK_RANKS, LINK_ENVS, LINK_STEPS = 2, 256, 32
"""Ranks, envs per rank, and steps per rollout in the runs over links."""


@dataclass(frozen=True, kw_only=True)
class LinkRuns:
    """Figures of several training runs over the same link, with the same setting."""

    link: str
    """Name of the link in :data:`LINK_SUMS`."""
    setting: str
    """Name of the --sync flags of the runs, a key of ``SETTINGS`` in scale_model.py."""
    steps_per_s: tuple[float, ...]
    """Speed of each run: median over iterations."""
    waiting: tuple[float, ...]
    """Share of its time that each run spent in collectives."""
    seconds: tuple[float, ...]
    """Seconds until each run reached a return of 900."""


@dataclass(frozen=True, kw_only=True)
class LinkSums:
    """Time of sums over two ranks that a link connects. Each time is the median of many sums."""

    bytes_per_s: float
    """Rate of the link."""
    round_trip_s: float
    """Measured round-trip time of a small packet."""
    seconds: dict[tuple[int, int], float]
    """Seconds of a sum, by number of values and bytes per value."""


@dataclass(frozen=True, kw_only=True)
class RealRanks:
    """Times of the bookkeeping of real ranks, which have no envs and networks (see bench_ranks.py)."""

    ranks: int
    """Number of processes."""
    total_s: float
    """Time from the start of the processes to their end."""
    joined_s: float
    """Maximum over the ranks of the time to join the other ranks."""
    metrics_ms: float
    """Time to sum the metrics of an iteration."""
    checkpoint_ms: float
    """Time to compare the ranks, gather their state and write a checkpoint."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRanks:
    """CPU times of the bookkeeping of rank 0 among simulated ranks. Each time is the mean of two runs."""

    ranks: int
    events_ms: float
    metrics_ms: float
    checkpoint_ms: float


REAL_RANKS = (
    RealRanks(ranks=4, total_s=8.2, joined_s=0.09, metrics_ms=2.22, checkpoint_ms=20.0),
    RealRanks(ranks=16, total_s=8.0, joined_s=0.46, metrics_ms=10.51, checkpoint_ms=69.7),
    RealRanks(ranks=64, total_s=14.0, joined_s=2.89, metrics_ms=129.89, checkpoint_ms=462.0),
)

SIMULATED_RANKS = (
    SimulatedRanks(ranks=16, events_ms=0.1, metrics_ms=0.47, checkpoint_ms=7.4),
    SimulatedRanks(ranks=64, events_ms=0.24, metrics_ms=0.67, checkpoint_ms=5.5),
    SimulatedRanks(ranks=256, events_ms=0.61, metrics_ms=1.7, checkpoint_ms=14.6),
    SimulatedRanks(ranks=1024, events_ms=2.5, metrics_ms=6.0, checkpoint_ms=64.2),
)

LINK_SUMS = {
    "10 Gbit/s, 0.1 ms": LinkSums(
        bytes_per_s=10e9 / 8, round_trip_s=0.41e-3,
        seconds={
            (1, 4): 0.74e-3, (1, 2): 0.75e-3, (10_000, 4): 3.48e-3, (10_000, 2): 3.02e-3,
            (1_000_000, 4): 16.90e-3, (1_000_000, 2): 11.50e-3,
        },
    ),
    "1 Gbit/s, 1 ms": LinkSums(
        bytes_per_s=1e9 / 8, round_trip_s=2.33e-3,
        seconds={
            (1, 4): 2.59e-3, (1, 2): 2.54e-3, (10_000, 4): 5.38e-3, (10_000, 2): 5.07e-3,
            (1_000_000, 4): 38.50e-3, (1_000_000, 2): 22.10e-3,
        },
    ),
    "100 Mbit/s, 10 ms": LinkSums(
        bytes_per_s=1e8 / 8, round_trip_s=20.50e-3,
        seconds={
            (1, 4): 21.00e-3, (1, 2): 21.00e-3, (10_000, 4): 45.20e-3, (10_000, 2): 43.40e-3,
            (1_000_000, 4): 365.00e-3, (1_000_000, 2): 202.00e-3,
        },
    ),
}  # fmt: skip

OVERLAPS = {
    "10 Gbit/s, 0.1 ms": {"cartpole": 1.00, "humanoid": 1.04},
    "1 Gbit/s, 1 ms": {"cartpole": 1.16, "humanoid": 0.95},
    "100 Mbit/s, 10 ms": {"cartpole": 0.95, "humanoid": 0.89},
}
"""How the time of a mini-batch changes if gradients are summed in two buckets, one of them during the backward pass,
instead of all at once after it: ratio of the two times for each link and network."""

LINK_RUNS = (
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="default",
        steps_per_s=(79_466, 86_266),
        waiting=(0.32, 0.32),
        seconds=(13, 11),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="bf16",
        steps_per_s=(84_065, 85_882),
        waiting=(0.32, 0.33),
        seconds=(13, 13),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="period 4",
        steps_per_s=(124_452, 127_864),
        waiting=(0.06, 0.05),
        seconds=(9, 9),
    ),
    LinkRuns(
        link="10 Gbit/s, 0.1 ms",
        setting="period 16",
        steps_per_s=(127_133, 126_620),
        waiting=(0.06, 0.06),
        seconds=(9, 9),
    ),
    LinkRuns(
        link="1 Gbit/s, 1 ms",
        setting="default",
        steps_per_s=(62_890, 61_921),
        waiting=(0.45, 0.46),
        seconds=(15, 15),
    ),
    LinkRuns(
        link="1 Gbit/s, 1 ms",
        setting="bf16",
        steps_per_s=(66_447, 61_932),
        waiting=(0.47, 0.46),
        seconds=(17, 18),
    ),
    LinkRuns(
        link="1 Gbit/s, 1 ms",
        setting="period 4",
        steps_per_s=(127_360, 116_731),
        waiting=(0.1, 0.09),
        seconds=(9, 10),
    ),
    LinkRuns(
        link="1 Gbit/s, 1 ms",
        setting="period 16",
        steps_per_s=(134_550, 126_039),
        waiting=(0.09, 0.1),
        seconds=(8, 9),
    ),
    LinkRuns(
        link="100 Mbit/s, 10 ms",
        setting="default",
        steps_per_s=(14_853, 14_800),
        waiting=(0.89, 0.89),
        seconds=(63, 62),
    ),
    LinkRuns(
        link="100 Mbit/s, 10 ms",
        setting="bf16",
        steps_per_s=(15_431, 14_787),
        waiting=(0.89, 0.87),
        seconds=(73, 76),
    ),
    LinkRuns(
        link="100 Mbit/s, 10 ms",
        setting="period 4",
        steps_per_s=(96_516, 71_937),
        waiting=(0.5, 0.48),
        seconds=(15, 19),
    ),
    LinkRuns(
        link="100 Mbit/s, 10 ms",
        setting="period 16",
        steps_per_s=(96_137, 69_964),
        waiting=(0.49, 0.43),
        seconds=(14, 17),
    ),
)
