"""Compute, say in words and plot how fast different numbers of ranks are, and what limits them. Imports no torch."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.verify.evidence import Evidence, IterationTimes
from mjlab_dist.machine.control_groups import cores
from mjlab_dist.runs.outputs import DPI, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# weak: all runs have the same number of envs per rank. strong: all runs have the same total number of envs.
Mode = Literal["weak", "strong"]

# Number of iterations at the start that are not counted, because they warm up caches and choose kernels
NUM_WARM_UP = 2

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
FIXED_COST_RATIO = 1.3


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
    iterations = [list(each) for each in zip(*(rank.iterations[NUM_WARM_UP:] for rank in ranks), strict=True)]
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
        lower = _of_update(config, "num_learning_epochs")
        found.append(f"update: takes {last.shares.update:.0%} of the time; lower {lower}, or use smaller networks")
    fullest, num_envs = max((one.memory_share, row.num_envs) for row in rows for one in row.rounds)
    if fullest > MAX_MEMORY:
        found.append(f"memory: {fullest:.0%} is in use; lower --num-envs (now {num_envs})")
    if not found and last.efficiency < GOOD:
        found.append("no single part: each part takes a little more time; raise --num-envs")
    return found


def _of_update(config: TrainConfig, of_ppo: str) -> str:
    """Return the flag that sets the number of gradient steps, with its value."""
    name = of_ppo if config.agent.algorithm == "ppo" else "updates_per_step"
    return f"--agent.{name.replace('_', '-')} (now {getattr(config.agent, name)})"


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
    return [f"{share}; use --sync.period 4,{halve} or lower {_of_update(config, 'num_mini_batches')}"]


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
    if ratio < FIXED_COST_RATIO:
        return []
    return [
        f"too few envs per rank: the computing time per env is {ratio:.2f} times as long with "
        f"{last.num_envs} envs as with {first.num_envs}; raise --num-envs, or use fewer ranks"
    ]


def _ratios(first: Row, last: Row) -> list[float]:
    """Return, for each round, the median rank's computing time in the last row divided by that in the first row."""
    pairs = zip(last.rounds, first.rounds, strict=True)
    return [statistics.median(one.computing_s) / statistics.median(other.computing_s) for one, other in pairs]


def plot(speeds: Mapping[Mode, Speeds], title: str, file: str) -> None:
    """Draw the speeds next to the ideal speeds, and the shares of the time, for each kind of scaling."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    modes: dict[Mode, Sequence[Row]] = {mode: each.rows for mode, each in speeds.items()}
    figure = Figure(figsize=(4.0 * (1 + len(modes)), 4.0), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(1, 1 + len(modes))
    _draw_speeds(axes[0], modes)
    for one, (mode, rows) in zip(axes[1:], modes.items(), strict=True):
        _draw_shares(one, mode, rows)
    axes[-1].legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    save_png(figure, "--plot", file)


def _draw_speeds(axes: Axes, modes: Mapping[Mode, Sequence[Row]]) -> None:
    for mode, rows in modes.items():
        ranks = [row.num_ranks for row in rows]
        (line,) = axes.plot(ranks, [row.steps_per_s for row in rows], marker="o", label=mode)
        speeds = [[one.steps_per_s for one in row.rounds] for row in rows]
        axes.fill_between(ranks, list(map(min, speeds)), list(map(max, speeds)), alpha=0.2, color=line.get_color())
    rows = next(iter(modes.values()))
    ideal = [rows[0].steps_per_s * row.num_ranks / rows[0].num_ranks for row in rows]
    axes.plot([row.num_ranks for row in rows], ideal, color="black", linestyle="--", linewidth=1, label="ideal")
    axes.set(xlabel="ranks", ylabel="steps/s", ylim=(0, None), xticks=[row.num_ranks for row in rows])
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_shares(axes: Axes, mode: str, rows: Sequence[Row]) -> None:
    ranks = [str(row.num_ranks) for row in rows]
    bottom = [0.0] * len(rows)
    each = [dataclasses.asdict(row.shares) for row in rows]
    for name in each[0]:
        heights = [shares[name] for shares in each]
        axes.bar(ranks, heights, bottom=bottom, label=name)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(xlabel="ranks", ylabel="share of the time", title=f"{mode} scaling", ylim=(0, 1))
