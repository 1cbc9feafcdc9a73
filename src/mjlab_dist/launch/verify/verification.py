"""Launch short runs with one, several and all ranks, judge the evidence of each, and compare speeds. Imports no torch.

The files of the runs are removed.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.distributed.exchange import RankInfo
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import UserError, listed
from mjlab_dist.launch.budget import Budget, budget_of, total_num_envs, validate_training
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan, devices_of, plan_envs, plan_hosts
from mjlab_dist.launch.verify.evidence import Check, Evidence, judge, verify_rank
from mjlab_dist.launch.verify.speeds import (
    NUM_WARM_UP,
    Mode,
    Reached,
    Round,
    Speeds,
    as_round,
    as_row,
    find_limits,
    verdict,
)
from mjlab_dist.machine.control_groups import cores
from mjlab_dist.machine.devices import Gpu, find_gpus
from mjlab_dist.machine.memory import check_memory
from mjlab_dist.messages import Event, emit, send
from mjlab_dist.runs.run_dir import create_run_dir

# Interval in iterations that no run reaches, for work that should not be measured
NEVER = 10**12

# Minimum number of iterations: those of the warm-up, one that is counted, and the last one, whose end is not measured
MIN_ITERATIONS = NUM_WARM_UP + 2


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of all runs."""

    # The ranks of the run whose checks follow: a run that failed or, if none did, one with all ranks
    ranks: list[RankInfo]
    checks: list[Check]
    # Speeds by kind of scaling; weak alone if scaling was not asked for
    speeds: dict[Mode, Speeds]

    @property
    def passed(self) -> bool:
        """Whether the ranks of every run have trained one policy; speeds do not matter."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A run to launch."""

    config: TrainConfig
    hosts: tuple[Host, ...]
    budget: Budget

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(devices_of(self.hosts))

    @property
    def key(self) -> tuple[int, int]:
        """Number of ranks and number of envs per rank, which identify the run."""
        return self.num_ranks, self.budget.num_envs


def verify(config: TrainConfig, *, scaling: bool, rounds: int, until_return: float | None) -> Report:
    """Train with one rank and with all, or with 1, 2, 4, ... ranks, and report what the ranks did and how fast.

    Each run uses as few machines as possible. Each round launches all runs once. If the machine is slow for a while,
    this therefore affects all numbers of ranks.

    Args:
        config: Config of the runs. By default, there are as many ranks as GPUs or, without GPUs, as cores.
        scaling: Whether to measure more numbers of ranks, and strong scaling.
        rounds: Number of rounds.
        until_return: Mean return that ends a run.
    """
    # Runs. The run with one rank is the same for both kinds of scaling, so it is launched only once per round.
    validate_training(config)
    total_num_envs(config, 1)  # raises for auto, which would differ between the runs
    if launcher := outside_launcher(os.environ):
        raise UserError(f"verify: starts its own ranks; run it without {launcher}")
    gpus = find_gpus()
    hosts = _hosts(config, gpus)
    devices = devices_of(hosts)
    config, budget = plan_envs(config, devices, hosts[0].devices, gpus, len(devices))
    assert budget is not None
    cases = _cases(config, hosts, budget.num_envs, gpus, scaling=scaling)
    distinct = {case.key: case for of_mode in cases.values() for case in of_mode}
    counts = sorted({case.num_ranks for case in distinct.values()})
    ranks = "1 rank" if counts == [1] else f"{listed(counts)} ranks"
    length = f"up to {max(case.budget.max_iterations for case in distinct.values())} iterations"
    emit("status", text=f"Training {config.task} for {length} with {ranks}; runs per round: {len(distinct)}")
    # Rounds
    judged: list[tuple[list[Evidence], list[Check]]] = []
    measured: dict[tuple[int, int], list[Round]] = {key: [] for key in distinct}
    for i in range(rounds):
        for key, case in distinct.items():
            evidence, reached = _run(case, until_return)
            judged.append((evidence, judge(case.config, evidence)))
            one = as_round(evidence, config.agent.num_steps_per_env, reached)
            measured[key].append(one)
            where = f"Round {i + 1}, ranks: {case.num_ranks} of {len(devices)}, envs per rank: {one.num_envs}"
            emit("status", text=f"{where}, steps/s: {one.steps_per_s:,.0f}")
    # Report
    speeds: dict[Mode, Speeds] = {}
    for mode, of_mode in cases.items():
        alone = measured[of_mode[0].key]
        rows = [as_row(case.num_ranks, measured[case.key], alone) for case in of_mode]
        speeds[mode] = Speeds(rows=rows, verdict=verdict(rows), limits=find_limits(mode, rows, config, devices))
    shown, checks = min(judged, key=lambda run: (all(check.passed for check in run[1]), -len(run[0])))
    return Report(ranks=[one.info for one in shown], checks=checks, speeds=speeds)


def _hosts(config: TrainConfig, gpus: list[Gpu]) -> tuple[Host, ...]:
    """Return the machines and devices of the largest run: by default all GPUs or, without GPUs, a CPU rank per core.

    A rank has as many threads in every run as in the largest run, so that its share of the machine stays the same.
    """
    if config.cpu_ranks is None and config.gpu_ids in (None, "auto"):
        on_gpus = config.gpu_ids == "auto" and gpus
        all_devices = {"gpu_ids": "all"} if on_gpus else {"gpu_ids": None, "cpu_ranks": cores()}
        config = dataclasses.replace(config, **all_devices)
    return plan_hosts(config, os.environ, gpus)


def _cases(
    config: TrainConfig, hosts: tuple[Host, ...], num_envs: int, gpus: list[Gpu], *, scaling: bool
) -> dict[Mode, list[_Case]]:
    """Return the runs of each kind of scaling, from one rank to all; in the largest, a rank has ``num_envs`` envs."""
    num_ranks = len(devices_of(hosts))
    powers = [2**i for i in range(num_ranks.bit_length())] if scaling else [1]
    counts = sorted(n for n in {*powers, num_ranks} if n % min(config.fsdp_devices, n) == 0)
    cases: dict[Mode, list[_Case]] = {"weak": [_case(config, _first(hosts, count), num_envs, gpus) for count in counts]}
    if scaling:
        flag, total = "--total-num-envs", config.total_num_envs
        if total is None:
            flag, total = "--num-envs", num_envs
        if uneven := [count for count in counts if total % count]:
            raise UserError(
                f"{flag} {total}: cannot be split evenly over {uneven[0]} ranks; use a multiple of {uneven[0]}"
            )
        cases["strong"] = [_case(config, _first(hosts, count), total // count, gpus) for count in counts]
    return cases


def _first(hosts: Sequence[Host], num_ranks: int) -> tuple[Host, ...]:
    """Return the first machines, with ``num_ranks`` devices in total; the last may use only some of its devices."""
    found: list[Host] = []
    for host in hosts:
        if left := num_ranks - len(devices_of(found)):
            found.append(dataclasses.replace(host, devices=host.devices[:left]))
    return tuple(found)


def _case(config: TrainConfig, hosts: tuple[Host, ...], num_envs: int, gpus: list[Gpu]) -> _Case:
    """Return the run on some of the devices."""
    devices = devices_of(hosts)
    config = dataclasses.replace(
        config,
        hosts=(),
        fsdp_devices=min(config.fsdp_devices, len(devices)),
        resume=None,
        max_restarts=0,
        logger=("tensorboard",),
        torchrunx_log_dir=config.torchrunx_log_dir or "",
        video_interval=None,
        evaluate_interval=None,
        checkpoint=dataclasses.replace(config.checkpoint, interval=NEVER),
        sync=dataclasses.replace(config.sync, check_interval=NEVER),
    )
    check_memory(config, num_envs, hosts[0].devices, gpus)
    budget = budget_of(config, len(devices), num_envs)
    if budget.max_iterations < MIN_ITERATIONS:
        total = config.total_timesteps
        flag = f"--max-iterations {config.max_iterations}" if total is None else f"--total-timesteps {total}"
        raise UserError(
            f"{flag}: gives {budget.max_iterations} iterations (ranks: {len(devices)}); the first {NUM_WARM_UP} and "
            f"the last are not timed; use at least {MIN_ITERATIONS} iterations"
        )
    return _Case(config=config, hosts=hosts, budget=budget)


def _run(case: _Case, until_return: float | None) -> tuple[list[Evidence], Reached | None]:
    """Train, and remove the files of the run."""
    from mjlab_dist.launch.ranks import run_ranks  # torchrunx imports torch

    control, reached = Control(), list[Reached]()

    def watch(event: Event) -> None:
        if event["kind"] != "iteration":
            send(event)
            return
        row = event["row"]
        mean_return = row["mean_return"]  # None before an episode has ended
        if not reached and until_return is not None and mean_return is not None and mean_return >= until_return:
            reached.append(Reached(seconds=row["elapsed_s"], steps=row["total_steps"]))
        if reached and row["iteration"] >= MIN_ITERATIONS:
            control.request_stop()

    with tempfile.TemporaryDirectory(prefix="mjlab-dist-verify-") as log_root:
        config = dataclasses.replace(case.config, log_root=log_root)
        plan = RunPlan(hosts=case.hosts, budget=case.budget, run_dir=create_run_dir(config))
        evidence = run_ranks(verify_rank, Evidence, config, plan, listen=watch, control=control)
    return evidence, reached[0] if reached else None
