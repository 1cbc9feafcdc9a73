"""Environment variables that a real launch sets for ranks. The GPUs are fake."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import environment_probe
import fake_nvml
import pytest
import torch
from environment_probe import Report
from fake_nvml import FakeGpu

import mjlab_dist
from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import RankError
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.runs.run_dir import ERRORS_DIR

UUIDS = ("GPU-11111111-2222-3333-4444-555555555555", "MIG-66666666-7777-8888-9999-000000000000")

DEVICES = tuple(RankDevice(device="cuda:0", visible=uuid, name=uuid, torch_threads=1, backend="gloo") for uuid in UUIDS)

Launch = Callable[..., list[Report]]


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """Start two ranks with additional environment variables, and return their reports."""

    def run(**environ: str) -> list[Report]:
        for name in environment_probe.NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        config = registry.task_config("cartpole-balance")
        (tmp_path / ERRORS_DIR).mkdir(exist_ok=True)
        plan = RunPlan(hosts=(Host(devices=DEVICES),), run_dir=tmp_path)
        return run_ranks(environment_probe.report, Report, config, plan, listen=lambda _: None, control=Control())

    return run


@pytest.mark.slow
def test_a_mig_instance_that_this_process_does_not_see_is_used_by_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a", instances=[FakeGpu("MIG-a"), FakeGpu("MIG-b")])])
    # GPU 1 does not exist. A RankError, and not torch's own error, shows that the rank ran in another process.
    with pytest.raises(RankError) as caught:
        mjlab_dist.train("cartpole-balance", gpu_ids=(1,), log_root=str(tmp_path), max_iterations=1, quiet=True)
    assert caught.value.rank == 0


def values(reports: list[Report], name: str) -> list[str | None]:
    return [report.variables[name] for report in reports]


@pytest.mark.slow
def test_every_rank_sees_its_own_device_before_cuda_starts(launch: Launch) -> None:
    reports = launch(CUDA_VISIBLE_DEVICES=",".join(UUIDS))
    assert values(reports, "CUDA_DEVICE_ORDER") == ["PCI_BUS_ID"] * 2
    assert values(reports, "MUJOCO_EGL_DEVICE_ID") == ["0", "0"], "the index among the devices that a rank sees"
    assert values(reports, "CUDA_VISIBLE_DEVICES") == list(UUIDS)
    assert not any(report.cuda_had_started for report in reports)


@pytest.mark.slow
def test_variables_of_the_user_reach_every_rank(launch: Launch) -> None:
    reports = launch(CUDA_DEVICE_ORDER="FASTEST_FIRST", MUJOCO_EGL_DEVICE_ID="3")
    assert values(reports, "MUJOCO_EGL_DEVICE_ID") == ["3"] * 2
    assert values(reports, "CUDA_DEVICE_ORDER") == ["FASTEST_FIRST"] * 2


def test_a_rank_in_an_existing_process_renders_on_its_own_device_and_restores_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in environment_probe.NAMES:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores the variable, whatever the run does
        monkeypatch.delenv(name)
    uuids = [f"GPU-{i}" for i in range(8)]
    fake_nvml.install(monkeypatch, [FakeGpu(uuid) for uuid in uuids])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(uuid=str(7 - i)))
    seen: list[str | None] = []

    def set_device(_: str) -> None:
        seen.append(os.environ.get("MUJOCO_EGL_DEVICE_ID"))
        raise RuntimeError("there is no such GPU")

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    with pytest.raises(RuntimeError, match="no such GPU"):
        mjlab_dist.train("cartpole-balance", gpu_ids=(2,), log_root=str(tmp_path), quiet=True)
    assert seen == ["5"]
    assert "MUJOCO_EGL_DEVICE_ID" not in os.environ
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
