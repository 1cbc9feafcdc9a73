"""Start ranks, and restart them from the newest checkpoint after a failure.

A restart uses all machines that answer, if at least ``--min-hosts`` of them do.
"""

from __future__ import annotations

import dataclasses
import os
import time

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.physics import with_sizes
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import Exit, RankError, UserError, counted
from mjlab_dist.launch import worker
from mjlab_dist.launch.budget import plan_budget
from mjlab_dist.launch.hosts.device_answer import DeviceRequest
from mjlab_dist.launch.hosts.host_checks import ask_hosts, describe_faults, with_equal_threads
from mjlab_dist.launch.hosts.ssh import Host, end_on_hosts
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.worker import RunResult
from mjlab_dist.messages import Event, emit, send
from mjlab_dist.runs.run_dir import CONFIG_FILE, list_checkpoints, read_config_file, read_metrics

# Seconds before the restart after an attempt without progress. Each further attempt without progress doubles the pause.
# After an attempt that trained for MAX_PAUSE_S or longer, the pauses start again at this value.
FIRST_PAUSE_S = 1.0

# Maximum seconds before a restart
MAX_PAUSE_S = 60.0

# Seconds between two checks while too few machines answer
RETRY_S = 5.0


def run_with_restarts(config: TrainConfig, plan: RunPlan, control: Control) -> RunResult:
    """Start ranks, and restart them up to ``max_restarts`` times, or until two attempts in a row make no progress.

    Returns:
        The result of rank 0. If a stop was requested and ranks were lost, the result at the newest checkpoint.

    Raises:
        RankError: If a rank ended early and the run is not restarted.
        TakenOverError: If another launch trains this run now, so that it is not restarted.
    """
    from mjlab_dist.launch.ranks import run_ranks  # torchrunx imports torch

    progress = _Progress()
    left: dict[str, list[str]] = {}  # launches that may still have processes, by machine that did not answer

    def listen_for_progress(event: Event) -> None:
        if event["kind"] == "iteration":
            progress.reach(event["row"]["iteration"])
        send(event)

    for attempt in range(config.max_restarts + 1):
        progress.begin()
        try:
            results = run_ranks(
                worker.run,
                RunResult,
                config,
                plan,
                listen=listen_for_progress,
                control=control,
                left=left,
            )
            return _raise_if_stopped_by_others(results[0], control)
        except RankError as error:
            if control.stop_requested and (stopped := _at_checkpoint(error, config, plan)):
                return stopped
            _raise_if_final(error, config, plan, control, attempt)
            if (pause_s := progress.pause_s()) is None:
                raise _with_reason(error, "Not restarting: two attempts in a row completed no new iteration") from None
            # Restart
            emit("status", text=error.report.rstrip())
            config = _with_grown_buffers(config, plan)
            when = f" in {pause_s:g} s" if pause_s else ""
            emit("warning", text=f"{error}. Restarting{when} ({attempt + 1} of {config.max_restarts}).")
            control.wait_for_stop(pause_s)
            plan = _plan_again(error, config, plan, left, control)
            if control.stop_requested:
                if stopped := _at_checkpoint(error, config, plan):
                    return stopped
                raise _with_reason(error, "Not restarting: a stop was requested") from None
    raise AssertionError("the last attempt returns or raises")


def _plan_again(
    error: RankError,
    config: TrainConfig,
    plan: RunPlan,
    left: dict[str, list[str]],
    control: Control,
) -> RunPlan:
    """Return the plan of the next attempt; if no attempt is possible, raise the error of the previous one."""
    try:
        plan = regroup(config, plan, control)
    except (TooFewHostsError, UserError) as fault:
        if control.stop_requested:
            return plan
        raise _with_reason(error, f"Not restarting: {fault}") from None
    # Processes that an earlier launch left on a machine that answers again would use memory that the next ranks need
    here, *others = plan.host_names
    for host in others:
        left[host] = [each for each in left.pop(host, []) if end_on_hosts((here, host), config.ssh_config, each)]
    return plan


class _Progress:
    """Progress of the attempts, and the pause that follows from it."""

    def __init__(self) -> None:
        self._reached = self._before = 0
        self._trains_since: float | None = None
        self._was_idle = False
        self._num_idle = 0

    def begin(self) -> None:
        """Begin an attempt."""
        self._before, self._trains_since = self._reached, None

    def reach(self, iteration: int) -> None:
        """Record an iteration that has ended."""
        self._reached = max(self._reached, iteration)
        if self._trains_since is None:
            self._trains_since = time.monotonic()

    def pause_s(self) -> float | None:
        """Return the seconds to wait after the attempt; None if two attempts in a row made no progress."""
        if self._trains_since is not None and time.monotonic() - self._trains_since >= MAX_PAUSE_S:
            self._num_idle = 0
        # A machine or a network may need some time to recover, so only a second attempt without progress ends the run
        was_idle, self._was_idle = self._was_idle, self._reached == self._before
        if not self._was_idle:
            return 0.0
        if was_idle:
            return None
        self._num_idle += 1
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._num_idle - 1))


def _at_checkpoint(error: RankError, config: TrainConfig, plan: RunPlan) -> RunResult | None:
    """Return the result of a run whose ranks were lost after a stop request.

    The result is None if there is no checkpoint, or if the error would have ended the run even without the request.
    """
    checkpoints = list_checkpoints(plan.run_dir)
    if config.max_restarts == 0 or not error.may_pass or not checkpoints:
        return None
    newest = max(checkpoints)
    text = f"{error}. Not restarting: a stop was requested. The newest checkpoint is of iteration {newest}."
    emit("warning", text=text)
    rows = [row for row in read_metrics(plan.run_dir) if row["iteration"] <= newest]
    return RunResult(
        run_dir=plan.run_dir, checkpoint=checkpoints[newest], metrics=rows[-1] if rows else {}, stopped=True
    )


def _raise_if_final(error: RankError, config: TrainConfig, plan: RunPlan, control: Control, attempt: int) -> None:
    """Raise the error of an attempt if no further attempt may follow; otherwise, renew the run's lease."""
    if config.max_restarts == 0 or not error.may_pass or control.stop_requested:
        raise error
    if plan.lease is not None:
        plan.lease.renew()
    if attempt == config.max_restarts:
        raise _with_reason(error, f"Giving up after {attempt} restart{'s' if attempt > 1 else ''}") from None


def _raise_if_stopped_by_others(result: RunResult, control: Control) -> RunResult:
    """Return the result; raise if the ranks stopped without a request from the launcher.

    When torchrunx loses an agent, it sends SIGTERM to the ranks, which then stop as if the user had requested it.
    """
    if result.stopped and not control.stop_requested:
        raise RankError(
            "a rank received SIGTERM, but not from its launcher: another program sent it, or torchrunx did after it "
            f"lost a machine or an agent. The run stopped and saved {result.checkpoint}",
            exit_code=Exit.INFRASTRUCTURE,
        )
    return result


def _with_grown_buffers(config: TrainConfig, plan: RunPlan) -> TrainConfig:
    """Return the config with the current buffer sizes, which the ranks may have enlarged and written to config.yaml.

    There is no such file if rank 0 ended before it wrote the file, or runs on another machine.
    """
    if config.env.sim.on_overflow != "grow" or not (plan.run_dir / CONFIG_FILE).is_file():
        return config
    sim = read_config_file(plan.run_dir, trust=True).env.sim
    return with_sizes(config, {"njmax": sim.njmax, "nconmax": sim.nconmax})


def _with_reason(error: RankError, reason: str) -> RankError:
    return RankError(f"{error}. {reason}", error.rank, error.report, error.exit_code, may_pass=error.may_pass)


class TooFewHostsError(Exception):
    """Too few machines answer. The message gives the reason for each machine that does not answer."""


def regroup(config: TrainConfig, plan: RunPlan, control: Control) -> RunPlan:
    """Return the plan of the next attempt, on all machines of the run that answer.

    A machine that an earlier attempt left out is used again if it answers. If fewer than ``--min-hosts`` machines
    answer, wait for up to ``--hang-timeout``, because a machine may be rebooting.
    """
    if len(plan.entries) < 2:
        return plan
    deadline = time.monotonic() + config.hang_timeout
    is_reported = False
    while True:
        hosts, faults = _answering(config, plan)
        if len(hosts) >= (config.min_hosts or len(plan.entries)):
            break
        if time.monotonic() > deadline or control.stop_requested:
            raise TooFewHostsError(describe_faults(faults))
        if not is_reported:
            text = f"Waiting for more hosts, for up to {config.hang_timeout:g} s: {describe_faults(faults)}"
            emit("warning", text=text)
            is_reported = True
        control.wait_for_stop(RETRY_S)

    # If the machines are the same, keep the plan
    if hosts == plan.hosts:
        return plan
    # If they differ, divide the envs among the new ranks
    new = dataclasses.replace(plan, hosts=hosts)
    new = dataclasses.replace(new, budget=plan_budget(config, new.num_ranks))
    ranks = f"{counted(new.num_ranks, 'rank')} instead of {plan.num_ranks}"
    text = f"Continuing on {len(hosts)} of {len(plan.entries)} hosts, with {ranks}"
    if faults:
        emit("warning", text=f"{text}: {describe_faults(faults)}")
    else:
        emit("status", text=f"{text}.")
    for note in new.budget.notes if new.budget else ():
        emit("status", text=note)
    return new


def _answering(config: TrainConfig, plan: RunPlan) -> tuple[tuple[Host, ...], dict[str, str]]:
    """Return the machines that can train now, and the faults of the other machines."""
    own, entries = plan.hosts[0], plan.entries[1:]
    requests = {name: DeviceRequest.of(config, num_ranks, os.environ, own.devices) for name, num_ranks in entries}
    answers, faults = ask_hosts(requests, config.ssh_config)
    others = [Host(name=name, devices=answers[name].devices) for name, _ in entries if name in answers]
    return with_equal_threads([own, *others]), faults
