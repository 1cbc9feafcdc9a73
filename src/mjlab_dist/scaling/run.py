"""Launch runs with 1, 2, 4, ... ranks, in rounds, and return their speeds and times. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from mjlab_dist.budget import plan_budget
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.control import Control
from mjlab_dist.distributed import RankDevice, outside_launcher
from mjlab_dist.errors import UserError
from mjlab_dist.launch.hosts import Host
from mjlab_dist.launch.plan import RunPlan, devices_of, plan_hosts, settled
from mjlab_dist.machine.devices import Gpu, cores, find_gpus
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.messages import Event, emit, send
from mjlab_dist.run_dir import create_run_dir
from mjlab_dist.scaling.figures import SKIPPED, Mode, Reached, Round, Row, as_round, rows
from mjlab_dist.scaling.limits import find_limits
from mjlab_dist.scaling.rank import RankTimes, time_rank

# Interval in iterations that no run reaches, for work that should not be measured
NEVER = 10**12

# Minimum number of iterations: the skipped ones, one that is counted, and the last one, whose end is not measured
MIN_ITERATIONS = SKIPPED + 2


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Results of a measurement of scaling."""

    # A row per number of ranks, by kind of scaling
    modes: dict[Mode, list[Row]]
    # Limits of the run with the most ranks, by kind of scaling. Each text names a flag that helps, if there is one.
    limits: dict[Mode, list[str]]


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A run to launch."""

    config: TrainConfig
    hosts: tuple[Host, ...]

    @property
    def devices(self) -> tuple[RankDevice, ...]:
        """The device of each rank."""
        return devices_of(self.hosts)

    @property
    def key(self) -> tuple[int, object]:
        """Number of ranks and number of envs per rank, which identify the run."""
        return len(self.devices), self.config.num_envs


def measure(config: TrainConfig, rounds: int, until_return: float | None) -> Scaling:
    """Measure weak and strong scaling on the devices of a config. Each run uses as few machines as possible.

    Each round launches all runs once: every number of ranks with every kind of scaling. If the machine is slow for a
    while, this therefore affects all numbers of ranks.
    """
    # Runs. The run with one rank is the same for both kinds of scaling, so it is launched only once per round.
    _check(config)
    gpus = find_gpus()
    hosts = _hosts(config, gpus)
    devices = devices_of(hosts)
    config = settled(config, devices)
    counts = _counts(len(devices))
    modes: tuple[Mode, ...] = ("weak", "strong")
    cases: dict[Mode, list[_Case]] = {
        mode: [_case(config, mode, _first(hosts, count), gpus) for count in counts] for mode in modes
    }
    distinct = {case.key: case for of_mode in cases.values() for case in of_mode}
    emit("status", text=f"Training {config.task} with {_in_words(counts)}, {len(distinct)} runs a round.")

    # Rounds
    measured: dict[tuple[int, object], list[Round]] = {key: [] for key in distinct}
    for i in range(rounds):
        for key, case in distinct.items():
            one = _run(case, until_return)
            measured[key].append(one)
            where = f"round {i + 1}, {len(case.devices)} of {len(devices)} ranks, {one.num_envs} envs per rank"
            emit("status", text=f"{where}: {one.steps_per_s:,.0f} steps/s")
    found: dict[Mode, list[Row]] = {
        mode: rows([(len(case.devices), measured[case.key]) for case in of_mode]) for mode, of_mode in cases.items()
    }
    limits: dict[Mode, list[str]] = {mode: find_limits(mode, each, config, devices) for mode, each in found.items()}
    return Scaling(modes=found, limits=limits)


def _check(config: TrainConfig) -> None:
    """Raise if a run cannot be measured."""
    validate(config)
    if launcher := outside_launcher(os.environ):
        raise UserError(f"scaling: starts its own ranks; run it without {launcher}")
    if config.num_envs == "auto":
        raise UserError("--num-envs auto: would differ between the runs; give a number")


def _hosts(config: TrainConfig, gpus: list[Gpu]) -> tuple[Host, ...]:
    """Return the machines and devices of the largest run: by default all GPUs or, without GPUs, a CPU rank per core.

    A rank has as many threads in every run as in the largest run, so that its share of the machine stays the same.
    """
    if config.cpu_ranks is None and config.gpu_ids == "auto" and gpus:
        config = dataclasses.replace(config, gpu_ids="all")
    elif config.cpu_ranks is None and (config.gpu_ids is None or not gpus):
        config = dataclasses.replace(config, gpu_ids=None, cpu_ranks=cores())
    return plan_hosts(config, os.environ, gpus)


def _first(hosts: Sequence[Host], num_ranks: int) -> tuple[Host, ...]:
    """Return the first machines, with ``num_ranks`` devices in total; the last may use only some of its devices."""
    found: list[Host] = []
    for host in hosts:
        if left := num_ranks - len(devices_of(found)):
            found.append(dataclasses.replace(host, devices=host.devices[:left]))
    return tuple(found)


def _counts(num_devices: int) -> list[int]:
    """Return 1, 2, 4, ... and the number of devices."""
    powers = [2**i for i in range(num_devices.bit_length())]
    return powers if powers[-1] == num_devices else [*powers, num_devices]


def _case(config: TrainConfig, mode: Mode, hosts: tuple[Host, ...], gpus: list[Gpu]) -> _Case:
    """Return the run with a given number of ranks."""
    assert config.num_envs != "auto"
    devices = devices_of(hosts)
    total = config.total_num_envs or config.num_envs
    num_envs = total if mode == "weak" else total // len(devices)
    if mode == "strong" and total % len(devices):
        flag = "--num-envs" if config.total_num_envs is None else "--total-num-envs"
        raise UserError(
            f"{flag} {total}: cannot be split evenly over {len(devices)} ranks; use a multiple of {len(devices)}"
        )
    config = dataclasses.replace(
        config,
        gpu_ids=None if devices[0].device == "cpu" else config.gpu_ids,
        cpu_ranks=len(devices) if devices[0].device == "cpu" else None,
        hosts=(),
        num_envs=num_envs,
        total_num_envs=None,
        fsdp_devices=min(config.fsdp_devices, len(devices)),
        resume=None,
        max_restarts=0,
        logger=("tensorboard",),
        torchrunx_log_dir="",
        video_interval=None,
        evaluate_interval=None,
        checkpoint=dataclasses.replace(config.checkpoint, interval=NEVER),
        sync=dataclasses.replace(config.sync, check_interval=NEVER),
    )
    check_memory(config, num_envs, hosts[0].devices, gpus)
    budget = plan_budget(config, len(devices))
    assert budget is not None
    if budget.max_iterations < MIN_ITERATIONS:
        total = config.total_timesteps
        flag = f"--max-iterations {config.max_iterations}" if total is None else f"--total-timesteps {total}"
        raise UserError(
            f"{flag}: is {budget.max_iterations} iterations with {len(devices)} ranks; the first {SKIPPED} and "
            f"the last are not timed; use at least {MIN_ITERATIONS} iterations"
        )
    return _Case(config=config, hosts=hosts)


def _run(case: _Case, until_return: float | None) -> Round:
    """Train, remove the files of the run, and return its speed and times."""
    from mjlab_dist.launch.ranks import run_ranks  # torchrunx imports torch

    control, reached = Control(), list[Reached]()

    def watch(event: Event) -> None:
        if event["kind"] != "iteration":
            send(event)
            return
        row = event["row"]
        if not reached and has_reached(row["mean_return"], until_return):
            reached.append(Reached(seconds=row["elapsed_s"], steps=row["total_steps"]))
        if reached and row["iteration"] >= MIN_ITERATIONS:
            control.request_stop()

    with tempfile.TemporaryDirectory(prefix="mjlab-dist-scaling-") as log_root:
        config = dataclasses.replace(case.config, log_root=log_root)
        budget = plan_budget(config, len(case.devices))
        plan = RunPlan(hosts=case.hosts, budget=budget, run_dir=create_run_dir(config))
        ranks = run_ranks(time_rank, RankTimes, config, plan, listen=watch, control=control)
    return as_round(ranks, config.agent.num_steps_per_env, reached[0] if reached else None)


def has_reached(mean_return: float | None, goal: float | None) -> bool:
    """Return whether a mean return is at least the goal. Without an ended episode (None) or a goal, it is not."""
    return mean_return is not None and goal is not None and mean_return >= goal


def _in_words(counts: Sequence[int]) -> str:
    return "1 rank" if list(counts) == [1] else f"{', '.join(map(str, counts[:-1]))} and {counts[-1]} ranks"
