"""Print devices and versions of the machine that runs this script as one JSON object, for the GPU report.

uv run python scripts/gpu_machine.py
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
import warp as wp
from torch.cuda import nccl

PACKAGES = (
    "mjlab-dist",
    "torch",
    "warp-lang",
    "mujoco",
    "mujoco-warp",
    "rsl-rl-lib",
    "torchrunx",
    "numpy",
    "tensordict",
)


def main() -> None:
    """Print the JSON object."""
    print(json.dumps(describe_machine()))


def describe_machine() -> dict[str, Any]:
    """Return devices, versions and sizes of memory, without the name and the paths of the machine."""
    found: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cpu_cores": len(os.sched_getaffinity(0)),
        "memory_gb": psutil.virtual_memory().total / 1e9,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "torch_cuda": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
        "gpus": [],
    }
    if not torch.cuda.is_available():
        return found
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    found["gpus"] = [_describe_gpu(index) for index in range(torch.cuda.device_count())]
    found["warp_cuda"] = _in_words(wp.get_cuda_toolkit_version)
    found["driver_cuda"] = _in_words(wp.get_cuda_driver_version)
    found["nccl"] = _in_words(nccl.version)
    found |= _ask_driver()
    return found


def _describe_gpu(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "memory_gb": properties.total_memory / 1e9,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
    }


def _ask_driver() -> dict[str, Any]:
    """Return the values of NVIDIA's management library that are available."""
    import pynvml  # noqa: PLC0415 (not needed on a CPU)

    found: dict[str, Any] = {}
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        found["driver"] = str(pynvml.nvmlSystemGetDriverVersion())
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found["power_limit_w"] = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
        found["clock_mhz"] = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return found


def _in_words(ask: Callable[[], Any]) -> str | None:
    """Return a version as text; None if it is not available."""
    try:
        answer = ask()
    except (RuntimeError, AttributeError, OSError):
        return None
    return ".".join(map(str, answer)) if isinstance(answer, tuple) else str(answer)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
