"""Evaluate a policy: plan the batches, play them on all ranks, and combine the results. Imports no torch."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mjlab_dist.config import EvaluateConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.distributed import RankDevice, outside_launcher
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import UserError
from mjlab_dist.imports import import_learner
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan, settled
from mjlab_dist.machine.devices import find_gpus, plan_devices
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.messages import emit, send
from mjlab_dist.play.evaluation_batches import Batch, BatchSums, Job, RankSums, play_batches, split
from mjlab_dist.play.vary import Point, make_points

# Half the width of a 95% confidence interval, in standard errors
Z_95 = 1.96


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
