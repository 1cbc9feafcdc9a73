"""Choose the machines of a restart: all that answer, if at least ``--min-hosts`` of them do. Imports no torch."""

from __future__ import annotations

import dataclasses
import os
import time

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch.budget import plan_budget
from mjlab_dist.launch.hosts.device_answer import DeviceRequest
from mjlab_dist.launch.hosts.host_checks import ask_hosts, describe_faults, with_equal_threads
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.messages import emit

# Seconds between two checks while too few machines answer
RETRY_S = 5.0


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
    ranks = "1 rank" if new.num_ranks == 1 else f"{new.num_ranks} ranks"
    text = f"Continuing on {len(hosts)} of {len(plan.entries)} hosts, with {ranks} instead of {plan.num_ranks}"
    if faults:
        emit("warning", text=f"{text}: {describe_faults(faults)}")
    else:
        emit("status", text=f"{text}.")
    return new


def _answering(config: TrainConfig, plan: RunPlan) -> tuple[tuple[Host, ...], dict[str, str]]:
    """Return the machines that can train now, and the faults of the other machines."""
    own, entries = plan.hosts[0], plan.entries[1:]
    requests = {name: DeviceRequest.of(config, num_ranks, os.environ, own.devices) for name, num_ranks in entries}
    answers, faults = ask_hosts(requests, config.ssh_config)
    others = [Host(name=name, devices=answers[name].devices) for name, _ in entries if name in answers]
    return with_equal_threads([own, *others]), faults
