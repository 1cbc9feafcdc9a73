"""Evaluate a policy: plan the batches of episodes, play them on all ranks, combine and plot the results.

Each batch is played by one rank. The random seed depends on the batch, not on the rank, so all ranks get the same
result for a batch. ``--vary`` evaluates a grid of configs. Imports no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.config import EvaluateConfig, EventConfig, RandomizationConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.dotted_names import value_of, with_values
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.config.signatures import REQUIRED
from mjlab_dist.distributed import RankDevice, RankPlan, outside_launcher, rank_from_environment
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.errors import UserError, did_you_mean, listed
from mjlab_dist.imports import frozen, import_learner, start_up
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan, settled
from mjlab_dist.launch.worker import free_earlier_run, prepare_process
from mjlab_dist.machine.control_groups import cores
from mjlab_dist.machine.devices import find_gpus, plan_devices, shared_cpu
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.messages import emit, send
from mjlab_dist.runs.outputs import DPI, check_figure_file, save_png

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from tensordict import TensorDict

# Maximum number of combinations of values
MAX_POINTS = 1000

VARY_SYNTAX = "write NAME=START:STOP:COUNT or NAME=VALUE,VALUE,..."

# Maximum number of progress reports
MAX_REPORTS = 10

# Half the width of a 95% confidence interval, in standard errors
Z_95 = 1.96

# Maximum number of varied parameters that a picture can show
MAX_AXES = 2

# Maximum number of cells of a heat map that contains its values as text
MAX_LABELLED = 150


@dataclass(frozen=True)
class Axis:
    """A parameter that varies."""

    # Name of the parameter, as the user has written it
    name: str
    # Values of the parameter
    values: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """A combination of values."""

    # Value of each axis, by the name of the axis; empty if nothing varies
    values: Mapping[str, float]
    # The run's config with these values
    config: TrainConfig


def parse_axis(text: str) -> Axis:
    """Parse an argument of ``--vary``."""
    name, separator, numbers = text.partition("=")
    try:
        if not (name and separator):
            raise ValueError
        if ":" in numbers:
            start, stop, count = numbers.split(":")
            values = _spaced(float(start), float(stop), int(count))
        else:
            values = tuple(map(float, numbers.split(",")))
    except ValueError:
        raise UserError(f"--vary {text}: is not a list of values; {VARY_SYNTAX}") from None
    if not values or not all(map(math.isfinite, values)):
        raise UserError(f"--vary {text}: needs finite numbers, and a count of at least 1; {VARY_SYNTAX}")
    return Axis(name, values)


def make_points(config: TrainConfig, texts: Sequence[str]) -> list[Point]:
    """Return all combinations of the values. The last axis varies fastest.

    Without arguments of ``--vary``, return a single point, which contains the run's config.
    """
    axes = [parse_axis(text) for text in texts]
    names = [axis.name for axis in axes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--vary {repeated[0]}: is given twice; list all its values in one --vary")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise UserError(f"--vary {' '.join(texts)}: makes {count} combinations; the maximum is {MAX_POINTS}")
    return [
        Point(varied, _varied(config, varied) if varied else config)
        for varied in (dict(zip(names, values, strict=True)) for values in itertools.product(*(a.values for a in axes)))
    ]


def changes_of(config: TrainConfig, name: str, value: float) -> dict[str, Any]:
    """Return the values, by dotted name, that set one entry of the env to a number.

    If the entry is a randomization, it always samples this value. If the entry is an event, each range of its params
    becomes the range from minus the value to the value. If the entry is a single range of an event, such as the
    velocity of a push, only this range changes in this way. Any other range becomes a range that contains only the
    value. A number is replaced with the value.
    """
    dotted, found = _find(config, name)
    if isinstance(found, RandomizationConfig):
        constant = {"low": value, "high": value, "mean": None, "std": None, "distribution": "uniform"}
        return {f"{dotted}.{field}": given for field, given in constant.items()}
    if isinstance(found, EventConfig):
        ranges = [param for param, given in found.params.items() if _is_range(given)]
        if not ranges:
            raise UserError(f"--vary {name}: the params of this event contain no range; vary another entry of the env")
        return {f"{dotted}.params.{param}": (-value, value) for param in ranges}
    if _is_range(found):
        return {dotted: (-value if dotted.startswith("env.events.") else value, value)}
    if isinstance(found, bool) or not isinstance(found, int | float | None):
        raise UserError(f"--vary {name}: is neither a number nor a range; vary a number, range, randomization or event")
    if isinstance(found, int):
        if not value.is_integer():
            raise UserError(f"--vary {name}: takes whole numbers; {value:g} is not whole")
        value = int(value)
    return {dotted: value}


def _find(config: TrainConfig, name: str) -> tuple[str, Any]:
    """Return the dotted name that a name refers to, and the value there. Dashes may stand for underscores."""
    env, spelled = config.env, name.replace("-", "_")
    short = {key: f"env.{kind}.{key}" for kind in ("events", "randomizations") for key in getattr(env, kind)}
    dotted = short.get(spelled, spelled)
    with contextlib.suppress(KeyError):
        found = value_of(config, dotted) if dotted.startswith("env.") else REQUIRED
        if found is not REQUIRED:
            return dotted, found
    known = [path for path, _ in paths({"env": to_plain(env)})]
    has = f"the task has {listed(sorted(short))}" if short else "the task has no randomizations and no events"
    raise UserError(f"--vary {name}: the env has nothing with this name; {did_you_mean(name, [*short, *known], has)}")


def _is_range(value: Any) -> bool:
    """Return whether a value is a range: two numbers."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(part, int | float) and not isinstance(part, bool) for part in value)
    )


def _spaced(start: float, stop: float, count: int) -> tuple[float, ...]:
    """Return equally spaced values, including both ends."""
    if count == 1:
        return (start,)
    return tuple(start + (stop - start) * i / (count - 1) for i in range(count))


def _varied(config: TrainConfig, values: Mapping[str, float]) -> TrainConfig:
    """Return a copy of a config with one combination of values. Raise if a value has a wrong type or is impossible."""
    changes = [changes_of(config, name, value) for name, value in values.items()]
    try:
        varied = with_values(config, {field: value for change in changes for field, value in change.items()})
        validate(varied)
    except UserError as error:
        raise UserError(f"--vary {' '.join(f'{name}={value:g}' for name, value in values.items())}: {error}") from None
    return varied


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Episodes that are simulated together."""

    # Index of the config in Job.configs
    point: int
    # Whether actions are sampled
    sampled: bool
    # Index of the batch among the batches with the same config and kind of actions. The random seed of the batch is
    # derived from this index.
    index: int
    # ID of the first env of the batch
    first_env_id: int
    # Number of envs; each plays one episode
    num_envs: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """All batches of an evaluation."""

    configs: tuple[TrainConfig, ...]
    # The batches. A batch is identified by its position in this tuple.
    batches: tuple[Batch, ...]
    checkpoint: Path
    seed: int


@dataclass(frozen=True, kw_only=True)
class BatchSums:
    """Results of a batch, summed over its episodes. Columns: :func:`~mjlab_dist.env.episodes.episode_columns`."""

    # Position of the batch in the job
    position: int
    num_episodes: int
    # Sum of the values of each column
    sums: dict[str, float]
    # Sum of the squared values of each column
    squares: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RankSums:
    """Results of a rank."""

    # Sums of the batches that the rank played, in the order of Job.batches
    batches: list[BatchSums]


def split(num_episodes: int, num_envs: int) -> list[tuple[int, int]]:
    """Return the first env id and the number of envs of each batch."""
    return [(first, min(num_envs, num_episodes - first)) for first in range(0, num_episodes, num_envs)]


def play_batches(job: Job, config: TrainConfig, plan: RankPlan, control: Control) -> RankSums:  # noqa: ARG001 (an Entry)
    """Play the batches of this rank. With n ranks, rank r plays the batches r, r + n, r + 2n, ..."""
    rank = rank_from_environment(os.environ)
    with start_up():
        prepare_process(plan.device, rank, job.seed)
        import mjlab_dist.env.episodes  # imports torch
        import mjlab_dist.learn.networks  # noqa: F401 (imports torch)
    own = range(rank.rank, len(job.batches), rank.world_size)
    results, reported = [], 0
    with frozen():  # the garbage collector then visits only objects that are created for the batches
        for count, position in enumerate(own):
            results.append(_play_batch(job, position, plan.device.device, control))
            # Progress: rank 0 reports its own progress, as an estimate for all ranks
            reached = MAX_REPORTS * (count + 1) // len(own)
            if rank.is_main and reached > reported:
                reported = reached
                emit("status", text=f"Played {100 * (count + 1) // len(own)}% of {len(job.batches)} batches.")
    return RankSums(batches=results)


def _play_batch(job: Job, position: int, device: str, control: Control) -> BatchSums:
    """Play a batch in new envs."""
    from mjlab_dist.env import Env  # imports torch
    from mjlab_dist.env.episodes import episode_columns, play_episodes
    from mjlab_dist.learn.networks import load_policy

    # Envs and policy
    batch = job.batches[position]
    config = job.configs[batch.point]
    free_earlier_run(device)
    seed_generators(job.seed, batch.index)
    env = Env(config.env, batch.num_envs, device, batch.first_env_id)
    policy = load_policy(env, config, job.checkpoint)

    # Episodes
    def act(obs: TensorDict) -> torch.Tensor:
        return policy(obs, stochastic_output=batch.sampled)

    values = play_episodes(env, act, policy.reset, lambda: control.beat(position))
    names = episode_columns(env)
    return BatchSums(
        position=position,
        num_episodes=batch.num_envs,
        sums=dict(zip(names, values.sum(dim=1).tolist(), strict=True)),
        squares=dict(zip(names, values.square().sum(dim=1).tolist(), strict=True)),
    )


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated mean over episodes."""

    # Mean over the episodes that were played
    mean: float
    # Lower end of the 95% confidence interval of the true mean; None with one episode
    low: float | None
    # Upper end of this interval
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Result for one combination of values, with one kind of actions."""

    # Value of each varied parameter, by name; empty if nothing varies
    varied: Mapping[str, float]
    # Kind of actions: mean or sampled
    actions: str
    # Number of episodes that were played
    num_episodes: int
    # Estimates by name: return, length in control steps, reward/<term> (weighted, summed over an episode),
    # termination/<reason> (share of the episodes that ended for this reason), and metric/<name> and
    # command/<name>/<metric> (values of an episode).
    columns: Mapping[str, Estimate]


def evaluate(train_config: TrainConfig, checkpoint: Path, config: EvaluateConfig) -> list[Evaluated]:
    """Evaluate a policy on the chosen devices.

    There is one result for each combination of values and each kind of actions. The kind of actions varies fastest,
    followed by the value of the last ``--vary``.
    """
    # Devices, and a config for this machine
    gpus = find_gpus()
    own = dataclasses.replace(
        train_config,
        gpu_ids=config.gpu_ids,
        cpu_ranks=config.cpu_ranks,
        hosts=(),
        min_hosts=None,
        total_num_envs=None,
        torchrunx_log_dir="",
    )
    validate(own)
    devices = plan_devices(own, os.environ, gpus)
    own = settled(own, devices)
    # Batches
    points = make_points(own, config.vary)
    kinds = ("mean", "sampled") if config.actions == "both" else (config.actions,)
    batches = [
        Batch(point=i, sampled=kind == "sampled", index=index, first_env_id=first, num_envs=num_envs)
        for i in range(len(points))
        for kind in kinds
        for index, (first, num_envs) in enumerate(split(config.num_episodes, config.num_envs))
    ]
    if devices[0].device == "cpu" and config.cpu_ranks is None:
        devices = shared_cpu(min(cores(), len(batches)))
    devices = devices[: len(batches)]
    check_memory(own, min(config.num_envs, config.num_episodes), devices, gpus)
    job = Job(
        configs=tuple(point.config for point in points),
        batches=tuple(batches),
        checkpoint=checkpoint.resolve(),
        seed=config.seed,
    )
    # Play the batches on all ranks, and group the results by config and kind of actions
    ranks = _play(job, own, devices)
    played = sorted((batch for rank in ranks for batch in rank.batches), key=lambda batch: batch.position)
    groups: dict[tuple[int, bool], list[BatchSums]] = {}
    for batch, sums in zip(batches, played, strict=True):
        groups.setdefault((batch.point, batch.sampled), []).append(sums)
    return [_combined(points[i], "sampled" if sampled else "mean", sums) for (i, sampled), sums in groups.items()]


def check(config: EvaluateConfig) -> None:
    """Raise if a number is out of range, or if another launcher has started this process."""
    validate_limits(config)
    if config.min_return is not None and math.isnan(config.min_return):
        raise UserError(f"--min-return {config.min_return}: must be a number")
    if launcher := outside_launcher(os.environ):
        raise UserError(f"evaluate: starts its own ranks; run it without {launcher}")


def _play(job: Job, config: TrainConfig, devices: tuple[RankDevice, ...]) -> list[RankSums]:
    """Play all batches: in this process if there is only one device, otherwise on several ranks."""
    names = ", ".join(device.name for device in devices)
    num_episodes = sum(batch.num_envs for batch in job.batches)
    emit("status", text=f"Playing {num_episodes} episodes on {names}.")
    entry = functools.partial(play_batches, job)
    with tempfile.TemporaryDirectory(prefix="mjlab-dist-evaluate-") as directory:
        plan = RunPlan(hosts=(Host(devices=devices),), run_dir=Path(directory))
        if len(devices) == 1:
            import_learner()
            return [entry(config, plan.rank_plans[0], Control())]
        from mjlab_dist.launch.ranks import run_ranks  # torchrunx imports torch

        return run_ranks(entry, RankSums, config, plan, listen=send, control=Control())


def _combined(point: Point, actions: str, batches: Sequence[BatchSums]) -> Evaluated:
    count = sum(batch.num_episodes for batch in batches)
    columns = {}
    for name in batches[0].sums:
        mean = sum(batch.sums[name] for batch in batches) / count
        square = sum(batch.squares[name] for batch in batches) / count
        if count == 1:
            columns[name] = Estimate(mean=mean, low=None, high=None)
            continue
        error = Z_95 * math.sqrt(max(0.0, square - mean**2) / (count - 1))
        columns[name] = Estimate(mean=mean, low=mean - error, high=mean + error)
    return Evaluated(varied=point.values, actions=actions, num_episodes=count, columns=columns)


def check_plot(file: str, num_axes: int) -> None:
    """Raise if a picture cannot be drawn or written."""
    check_figure_file("--plot", file, [".png"])
    if not 1 <= num_axes <= MAX_AXES:
        raise UserError(f"--plot {file}: can show one or two varied parameters, not {num_axes}; add or remove --vary")


def plot(results: Sequence[Evaluated], title: str, file: str) -> None:
    """Draw mean returns: a line with its 95% interval for one varied parameter, or a heat map for two."""
    from matplotlib.figure import Figure  # an extra, and slow to import

    kinds = list(dict.fromkeys(result.actions for result in results))
    is_map = len(results[0].varied) == MAX_AXES
    figure = Figure(figsize=(7.0 * (len(kinds) if is_map else 1), 4.5), dpi=DPI, layout="constrained")
    figure.suptitle(title)
    if is_map:
        for i, kind in enumerate(kinds):
            axes = figure.add_subplot(1, len(kinds), i + 1)
            axes.set_title(f"{kind} actions" if len(kinds) > 1 else "")
            _draw_map(axes, [result for result in results if result.actions == kind])
    else:
        axes = figure.add_subplot()
        for kind in kinds:
            _draw_line(axes, [result for result in results if result.actions == kind], f"{kind} actions")
        if len(kinds) > 1:
            axes.legend()
    save_png(figure, "--plot", file)


def _draw_line(axes: Axes, results: Sequence[Evaluated], label: str) -> None:
    (name,) = results[0].varied
    values = [result.varied[name] for result in results]
    returns = [result.columns["return"] for result in results]
    (line,) = axes.plot(values, [one.mean for one in returns], marker="o", label=label)
    if all(one.low is not None for one in returns):
        axes.fill_between(values, [one.low for one in returns], [one.high for one in returns], alpha=0.2)  # pyright: ignore[reportArgumentType]
    axes.set_xlabel(name)
    axes.set_ylabel("mean return, with its 95% interval")
    axes.grid(alpha=0.3)
    line.set_clip_on(False)


def _draw_map(axes: Axes, results: Sequence[Evaluated]) -> None:
    # Columns of the heat map: first parameter. Rows: second parameter, which varies fastest in the results
    first, second = results[0].varied
    columns, rows = (list(dict.fromkeys(result.varied[name] for result in results)) for name in (first, second))
    means = [result.columns["return"].mean for result in results]
    table = [[means[c * len(rows) + r] for c in range(len(columns))] for r in range(len(rows))]
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(columns)), [f"{value:.3g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:.3g}" for value in rows])
    axes.set_xlabel(first)
    axes.set_ylabel(second)
    axes.figure.colorbar(image, ax=axes, label="mean return")
    if len(results) <= MAX_LABELLED:
        middle = (min(means) + max(means)) / 2
        for r, row in enumerate(table):
            for c, mean in enumerate(row):
                color = "white" if mean < middle else "black"
                axes.text(c, r, f"{mean:.3g}", ha="center", va="center", color=color, fontsize="small")
