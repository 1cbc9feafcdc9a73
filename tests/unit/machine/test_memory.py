"""Runs that cannot fit into memory are refused before anything is built."""

from __future__ import annotations

import dataclasses
from typing import Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import UserError
from mjlab_dist.machine import memory
from mjlab_dist.machine.devices import find_gpus, plan_devices
from mjlab_dist.machine.memory import check_memory, min_env_bytes, min_network_bytes

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")


def config_with(**changes: Any) -> TrainConfig:
    return dataclasses.replace(registry.task_config("cartpole-balance"), **changes)


def refusal_of(config: TrainConfig, num_envs: int, *args: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_memory(config, num_envs, *args)
    return str(caught.value)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_ranks_share_the_main_memory(monkeypatch: pytest.MonkeyPatch, num_ranks: int):
    config = config_with(total_num_envs=None)
    room = min_network_bytes(config.agent) + 100 * min_env_bytes(config)
    monkeypatch.setattr(memory, "free_cpu_bytes", lambda: num_ranks * room)
    check_memory(config, 100, [CPU] * num_ranks, [])
    message = refusal_of(config, 101, [CPU] * num_ranks, [])
    assert message.startswith("--num-envs 101: ")
    assert "; use up to 100 envs per rank" in message
    assert message.endswith("--num-envs auto")


def test_the_flag_of_a_total_is_named(monkeypatch: pytest.MonkeyPatch):
    config = config_with(total_num_envs=64)
    monkeypatch.setattr(memory, "free_cpu_bytes", lambda: min_network_bytes(config.agent) + 10 * min_env_bytes(config))
    assert refusal_of(config, 64, [CPU], []).startswith("--total-num-envs 64: ")


def test_less_memory_than_one_env_needs_is_refused_without_a_number_of_envs(monkeypatch: pytest.MonkeyPatch):
    config = config_with()
    monkeypatch.setattr(memory, "free_cpu_bytes", lambda: min_env_bytes(config))
    message = refusal_of(config, 1, [CPU], [])
    assert "--env.sim.njmax" in message
    assert "auto" not in message


def test_each_gpu_has_its_own_memory(monkeypatch: pytest.MonkeyPatch):
    config = config_with(gpu_ids="all")
    large = 2 * (min_network_bytes(config.agent) + 100 * min_env_bytes(config))
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", total_bytes=large), FakeGpu("GPU-b", total_bytes=large // 2)])
    gpus = find_gpus()
    devices = plan_devices(config, {}, gpus)
    check_memory(config, 100, devices, gpus)
    assert "(GPU 1)" in refusal_of(config, 101, devices, gpus)
    # The memory of a GPU without an ID in NVML is unknown, so any number of envs is accepted.
    check_memory(config, 10**12, [dataclasses.replace(devices[0], gpu_id=None)], gpus)


def test_histories_and_networks_count():
    base = config_with()
    (group, terms), *_ = base.env.observations.items()
    long = {name: dataclasses.replace(term, history=1000) for name, term in terms.items()}
    env = dataclasses.replace(base.env, observations={group: long})
    steps = base.agent.num_steps_per_env
    assert min_env_bytes(config_with(env=env)) - min_env_bytes(base) >= 4 * steps * 999 * len(long)
    agent = dataclasses.replace(base.agent, actor_hidden_dims=(1000, 2000), critic_hidden_dims=(10,))
    assert min_network_bytes(agent) == 1000 * 2000 * 4 * 4
    assert min_network_bytes(dataclasses.replace(agent, rnn="gru")) > min_network_bytes(agent)
