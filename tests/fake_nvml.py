"""NVIDIA's management library (NVML) on made-up machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

GB = 10**9


@dataclass
class FakeGpu:
    """A GPU, or a MIG instance of one, as NVML reports it."""

    uuid: str
    name: str = "Model"
    fails: dict[str, int] = field(default_factory=dict)
    """Dict from the name of a function to the error code that the function raises for this GPU."""
    instances: Sequence[FakeGpu | None] | None = None
    """MIG instances by NVML's index; None for an unused index. The whole list is None if MIG mode is off."""
    free_bytes: int = 80 * GB
    total_bytes: int = 80 * GB


def install(monkeypatch: pytest.MonkeyPatch, gpus: Sequence[FakeGpu], fails: dict[str, int] | None = None) -> None:
    """Let pynvml report a machine with these GPUs.

    Args:
        monkeypatch: Restores pynvml's functions after the test.
        gpus: The GPUs in NVML's order.
        fails: Dict from the name of a function without a GPU argument to the error code that the function raises.
    """

    codes = fails or {}

    def by_index(index: int) -> FakeGpu:
        return _answer("nvmlDeviceGetHandleByIndex", gpus[index].fails, gpus[index])

    def by_uuid(uuid: str) -> FakeGpu:
        found = [one for gpu in gpus for one in (gpu, *(gpu.instances or ())) if one and one.uuid == uuid]
        return _answer("nvmlDeviceGetHandleByUUID", found[0].fails, found[0])

    answers = {
        "nvmlInit": None,
        "nvmlShutdown": None,
        "nvmlDeviceGetCount": len(gpus),
        "nvmlSystemGetDriverVersion": "580.65",
        "nvmlSystemGetCudaDriverVersion_v2": 13000,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda name=name, answer=answer: _answer(name, codes, answer))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", by_index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    for name, query in QUERIES.items():
        monkeypatch.setattr(
            pynvml,
            name,
            lambda gpu, *args, name=name, query=query: _answer(name, gpu.fails, query(gpu, *args)),
        )


def _answer(name: str, fails: dict[str, int], answer: Any) -> Any:
    if name in fails:
        raise pynvml.NVMLError(fails[name])
    return answer


def _instance(gpu: FakeGpu, index: int) -> FakeGpu:
    found = (gpu.instances or ())[index]
    if found is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return found


QUERIES: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(free=gpu.free_bytes, total=gpu.total_bytes),
    "nvmlDeviceGetComputeRunningProcesses": lambda _: [],
    "nvmlDeviceGetMigMode": lambda gpu: [int(gpu.instances is not None)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: len(gpu.instances or ()),
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
}
"""Functions whose first argument is a GPU or a MIG instance."""
