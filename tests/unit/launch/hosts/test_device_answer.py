"""A launcher on another machine requests devices. This machine answers with the devices that its ranks will use."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

import fake_nvml
import pytest
from fake_nvml import FakeGpu

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.launch.hosts.device_answer import DeviceAnswer, DeviceRequest, answer

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")
GPU = RankDevice(device="cuda:0", visible="GPU-here", name="GPU", torch_threads=1, backend="nccl")


def request(gpu_ids: Any, num_ranks: int | None = None, own: RankDevice = GPU, **environ: str) -> DeviceRequest:
    config = dataclasses.replace(registry.task_config("cartpole-balance"), gpu_ids=gpu_ids)
    return DeviceRequest.of(config, num_ranks, environ, (own,))


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = FakeGpu("GPU-b", fails={"nvmlDeviceGetUUID": fake_nvml.pynvml.NVML_ERROR_GPU_IS_LOST})
    fake_nvml.install(monkeypatch, [FakeGpu("GPU-a"), lost, FakeGpu("GPU-c")])


@pytest.mark.usefixtures("three_gpus")
def test_a_machine_chooses_its_own_gpus_and_reports_those_that_it_skips():
    made = answer(request("all"), {})
    assert [device.visible for device in made.devices] == ["GPU-a", "GPU-c"]
    (warning,) = made.warnings
    assert warning.startswith("GPU 1 ")
    assert [device.visible for device in answer(request("auto", 2), {}).devices] == ["GPU-a", "GPU-c"]


@pytest.mark.usefixtures("three_gpus")
def test_variables_of_the_launcher_apply_on_the_other_machine():
    made = answer(request("all", CUDA_VISIBLE_DEVICES="2", PATH="ignored"), {"CUDA_VISIBLE_DEVICES": "0"})
    assert [device.visible for device in made.devices] == ["GPU-c"]
    # The UUID of a GPU on the launcher's machine selects no GPU on this machine
    assert answer(request("all", CUDA_VISIBLE_DEVICES="GPU-here"), {}).error.startswith("--gpu-ids all: ")
    assert "--gpu-ids None" in answer(request("auto", CUDA_VISIBLE_DEVICES="GPU-here"), {}).error


@pytest.mark.usefixtures("three_gpus")
def test_no_gpu_is_used_if_the_launcher_uses_the_cpu():
    assert [device.device for device in answer(request("auto", own=CPU), {}).devices] == ["cpu"]


@pytest.mark.usefixtures("three_gpus")
def test_too_few_gpus_are_an_error():
    made = answer(request("all", 3), {})
    assert made.devices == ()
    assert made.error.startswith("--hosts: 3 ranks ")


@pytest.mark.parametrize("gpu_ids", [(0, 1), None])
def test_request_and_answer_are_lines_of_text(gpu_ids: Any):
    asked = request(gpu_ids, 2, CUDA_VISIBLE_DEVICES="")
    module = [sys.executable, "-m", "mjlab_dist.launch.hosts.device_answer", asked.argument()]
    printed = subprocess.run(module, capture_output=True, text=True, check=True).stdout
    assert DeviceAnswer.read(printed) == answer(asked, os.environ)
    assert len(json.loads(printed)["devices"]) == (2 if gpu_ids is None else 0)
