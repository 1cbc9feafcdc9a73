"""Say in words how fast ranks are, and what limits them, with the flags that help. Imports no torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.verify.speeds import Row
from mjlab_dist.machine.devices import cores

# Efficiencies from which on a speed is called good, and doubtful
GOOD = 0.9
DOUBTFUL = 1.1

# Larger shares of an iteration's time for communication, waiting or update are reported as a limit
MAX_COMMUNICATION = 0.15
MAX_WAITING = 0.15
MAX_UPDATE = 0.5

# Memory is reported as a limit if a larger share of it is in use
MAX_MEMORY = 0.9

# A rank limits the others if its computing time is at least this multiple of the median rank's
SLOW_RANK = 1.15

# Ranks slow each other down if their computing time is at least this multiple of a single rank's
SLOWED = 1.2

# Ranks have too few envs if their computing time is at least this multiple of the expected time, which is proportional
# to their number of envs.
FIXED = 1.3


def verdict(rows: Sequence[Row]) -> str:
    """Return one line that says whether the most ranks are faster than one rank."""
    last = rows[-1]
    if last.num_ranks == 1:
        return "there is only one rank to measure"
    word = "good" if last.efficiency >= GOOD else "limited" if last.speed_up > 1 else "no gain"
    if last.efficiency > DOUBTFUL:
        word = "doubtful, because other programs slowed a run; repeat with --rounds 3"
    factor = f"{last.num_ranks} ranks are {last.speed_up:.2f} times as fast as one"
    return f"{factor}, {last.efficiency:.0%} of the ideal: {word}"


def find_limits(mode: str, rows: Sequence[Row], config: TrainConfig, devices: Sequence[RankDevice]) -> list[str]:
    """Return lines about what limits the run with the most ranks, the most important limit first."""
    first, last = rows[0], rows[-1]
    found: list[str] = []
    if last.num_ranks > 1:
        found += [*_slowest_rank(last), *_waiting(last), *_network(last, config)]
        found += _cores(first, last, devices) if mode == "weak" else _few_envs(first, last)
    if last.shares.update > MAX_UPDATE:
        found.append(
            f"update: takes {last.shares.update:.0%} of the time; lower "
            f"--agent.num-learning-epochs (now {config.agent.num_learning_epochs}), or use smaller networks"
        )
    fullest, num_envs = max((one.memory_share, row.num_envs) for row in rows for one in row.rounds)
    if fullest > MAX_MEMORY:
        found.append(f"memory: {fullest:.0%} is in use; lower --num-envs (now {num_envs})")
    if not found and last.efficiency < GOOD:
        found.append("no single part: each part takes a little more time; raise --num-envs")
    return found


def _slowest_rank(row: Row) -> list[str]:
    """Return a line if the same rank computes longer than the others in every one of several rounds."""
    slowest = {max(range(row.num_ranks), key=one.computing_s.__getitem__) for one in row.rounds}
    ratio = statistics.median(max(one.computing_s) / statistics.median_low(one.computing_s) for one in row.rounds)
    if len(row.rounds) == 1 or len(slowest) > 1 or ratio < SLOW_RANK or row.shares.waiting < MAX_WAITING / 2:
        return []
    return [
        f"slowest rank: rank {slowest.pop()} computes {ratio:.2f} times as long as the median rank, and the others "
        "wait for it; choose devices of one kind with --gpu-ids, or end other programs on its device"
    ]


def _waiting(row: Row) -> list[str]:
    if row.shares.waiting <= MAX_WAITING:
        return []
    return [
        f"waiting: ranks wait {row.shares.waiting:.0%} of the time until the last rank reaches a collective; raise "
        "--num-envs, or let ranks train independently for several iterations with --sync.period 4"
    ]


def _network(row: Row, config: TrainConfig) -> list[str]:
    if row.shares.communication <= MAX_COMMUNICATION:
        return []
    share = f"network: collectives take {row.shares.communication:.0%} of the time"
    if config.sync.period > 1:
        return [f"{share}; raise --sync.period (now {config.sync.period})"]
    halve = " halve the data with --sync.compression bf16," if config.sync.compression == "none" else ""
    return [
        f"{share}; use --sync.period 4,{halve} or lower --agent.num-mini-batches (now {config.agent.num_mini_batches})"
    ]


def _cores(first: Row, last: Row, devices: Sequence[RankDevice]) -> list[str]:
    """Return a line if a rank with the same number of envs computes longer when there are more ranks."""
    ratio = statistics.median(_ratios(first, last))
    if ratio < SLOWED:
        return []
    slowed = f"CPU cores: the median rank computes {ratio:.2f} times as long as a single rank"
    if devices[0].device == "cpu" and len(devices) > cores():
        return [f"{slowed}; lower --cpu-ranks (now {len(devices)}), because there are {cores()} cores"]
    return [f"{slowed}; ranks share cores, caches or memory bandwidth; use fewer ranks, or end other programs"]


def _few_envs(first: Row, last: Row) -> list[str]:
    """Return a line if the computing time of a rank does not fall in proportion to its number of envs."""
    ratio = statistics.median(_ratios(first, last)) * first.num_envs / last.num_envs
    if ratio < FIXED:
        return []
    return [
        f"too few envs per rank: the computing time per env is {ratio:.2f} times as long with "
        f"{last.num_envs} envs as with {first.num_envs}; raise --num-envs, or use fewer ranks"
    ]


def _ratios(first: Row, last: Row) -> list[float]:
    """Return, for each round, the median rank's computing time in the last row divided by that in the first row."""
    pairs = zip(last.rounds, first.rounds, strict=True)
    return [statistics.median(one.computing_s) / statistics.median(other.computing_s) for one, other in pairs]
