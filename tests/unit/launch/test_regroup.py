"""Which machines a restart uses, tested without real machines. tests/distributed/test_hosts_lab.py uses real hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.checks import parse_host
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.launch import restarts as module
from mjlab_dist.launch.budget import plan_budget
from mjlab_dist.launch.hosts.device_answer import DeviceAnswer, DeviceRequest
from mjlab_dist.launch.hosts.ssh import HERE, Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.restarts import TooFewHostsError, regroup
from mjlab_dist.messages import Event, listening

HOSTS = ("localhost", "node7", "node8:2")

CPU = RankDevice(device="cpu", name="cpu", torch_threads=2, backend="gloo")


class Machines:
    """Replaces real machines, which may not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = {"node7": 1, "node8": 2}
        self.asked: list[set[str]] = []
        monkeypatch.setattr(module, "ask_hosts", self.ask)

    def ask(self, requests: Mapping[str, DeviceRequest], _: Any) -> tuple[dict[str, DeviceAnswer], dict[str, str]]:
        self.asked.append(set(requests))
        answers = {name: DeviceAnswer(devices=(CPU,) * self.up[name]) for name in requests if name in self.up}
        return answers, {name: "no answer" for name in requests if name not in self.up}


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(monkeypatch)


def config_of(**fields: Any) -> TrainConfig:
    config = registry.task_config("cartpole-balance")
    own = {"hosts": HOSTS, "max_restarts": 1, "num_envs": 8, "total_num_envs": None, **fields}
    return dataclasses.replace(config, **own)


def plan_of(config: TrainConfig) -> RunPlan:
    counts = {HERE: 1, "node7": 1, "node8": 2}
    hosts = tuple(Host(name=name, devices=(CPU,) * num) for name, num in counts.items())
    entries = tuple(map(parse_host, HOSTS))
    return RunPlan(hosts=hosts, entries=entries, budget=plan_budget(config, 4), run_dir=Path("run"))


def again(config: TrainConfig, plan: RunPlan) -> tuple[RunPlan, list[Event]]:
    events: list[Event] = []
    with listening(events.append):
        return regroup(config, plan, Control()), events


def test_the_same_machines_keep_the_plan(machines: Machines):
    config = config_of(min_hosts=1)
    plan = plan_of(config)
    new, events = again(config, plan)
    assert new is plan
    assert machines.asked == [{"node7", "node8"}]
    assert not events


def test_a_lost_machine_is_left_out_and_taken_back(machines: Machines):
    config = config_of(min_hosts=2, num_envs=1, total_num_envs=24)
    plan = plan_of(config)
    del machines.up["node8"]
    two, (warning,) = again(config, plan)
    assert two.host_names == (HERE, "node7")
    assert two.num_ranks == 2
    assert two.budget is not None
    assert two.budget.num_envs == 12
    assert warning["kind"] == "warning"
    assert "host node8: no answer" in warning["text"]
    machines.up["node8"] = 1  # one of its two devices is missing
    three, (status,) = again(config, two)
    assert [len(host.devices) for host in three.hosts] == [1, 1, 1]
    assert status["kind"] == "status"


def test_a_restart_waits_for_all_machines_by_default(machines: Machines, monkeypatch: pytest.MonkeyPatch):
    config = config_of(hang_timeout=1e5)
    del machines.up["node8"]
    waits: list[float] = []

    def wait(_: Control, timeout_s: float) -> bool:
        waits.append(timeout_s)
        if len(waits) == 3:
            machines.up["node8"] = 2
        return False

    monkeypatch.setattr(Control, "wait_for_stop", wait)
    plan = plan_of(config)
    new, (warning,) = again(config, plan)
    assert new is plan
    assert len(waits) == 3
    assert "host node8: no answer" in warning["text"]


def test_the_wait_for_machines_is_limited(machines: Machines):
    config = config_of(min_hosts=2, hang_timeout=1e-9)
    machines.up.clear()
    with pytest.raises(TooFewHostsError, match="hosts node7, node8: no answer"):
        again(config, plan_of(config))


def test_a_total_that_the_remaining_ranks_cannot_share_is_rounded_up(machines: Machines):
    config = config_of(min_hosts=1, total_num_envs=20)
    plan = plan_of(config)
    del machines.up["node7"]
    new, (_, note) = again(config, plan)
    assert (new.num_ranks, new.budget and new.budget.num_envs) == (3, 7)
    assert note["text"].startswith("--total-num-envs 20: ")


def test_threads_are_equal_on_all_machines(monkeypatch: pytest.MonkeyPatch):
    config = config_of()
    one = dataclasses.replace(CPU, torch_threads=1)
    monkeypatch.setattr(
        module, "ask_hosts", lambda requests, _: ({name: DeviceAnswer(devices=(one,)) for name in requests}, {})
    )
    new, _ = again(config, plan_of(config))
    assert {device.torch_threads for device in new.devices} == {1}
