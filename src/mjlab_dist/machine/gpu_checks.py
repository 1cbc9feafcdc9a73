"""Checks of GPUs: their driver, whether packages are built for it, and what else uses the GPUs. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from mjlab_dist.machine import GB, Finding, Status
from mjlab_dist.machine.devices import CPU_FIX, Gpu, nvml
from mjlab_dist.machine.processes import run_program

# Minimum share of memory that is free on an unused GPU; the driver and a screen may use the rest
UNUSED_SHARE = 0.9

# The distribution of Warp
WARP = "warp-lang"

# Program that takes the path of Warp's library, and prints for which version of CUDA the library was built: 12040 for
# 12.4, 0 without CUDA.
TOOLKIT = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).wp_cuda_toolkit_version())"

# Timeout, in seconds, for loading Warp's library, a file of 300 MB
WARP_TIMEOUT_S = 10.0

# Where to find packages for CUDA versions that the package index does not have
SOURCES = {
    "torch": "https://pytorch.org/get-started",
    WARP: "its +cuXX wheels at https://github.com/NVIDIA/warp/releases",
}

# Oldest branch of the NVIDIA driver, such as R525, for each major version of CUDA
DRIVERS = {12: 525, 13: 580}


def check_torch() -> Finding:
    """Check whether the installed torch can use this machine's GPUs. Call this only if there is a GPU."""
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        return Finding(name="torch", figure="torch is missing", status=Status.FAIL, fix="uv sync --inexact")
    text = Path(str(torch.locate_file("torch/version.py"))).read_text()
    built_for = re.search(r"^cuda\b.*= '(\d+)\.(\d+)", text, re.MULTILINE)
    return judge_cuda("torch", torch.version, built_for and (int(built_for[1]), int(built_for[2])), driver_cuda())


def check_warp() -> Finding:
    """Check whether the installed Warp can use this machine's GPUs. Call this only if there is a GPU.

    Only Warp's library contains the version of CUDA that it was built for. A separate process loads the library to read
    this version.
    """
    try:
        warp = metadata.distribution(WARP)
    except metadata.PackageNotFoundError:
        return Finding(name=WARP, figure=f"{WARP} is missing", status=Status.FAIL, fix="uv sync --inexact")
    try:
        library = str(warp.locate_file("warp/bin/warp.so"))
        number = int(run_program(TOOLKIT, library, timeout_s=WARP_TIMEOUT_S))
    except (OSError, ValueError) as error:
        return Finding(
            name=WARP,
            figure=f"{WARP} {warp.version}, whose version of CUDA is unknown ({error})",
            status=Status.WARNING,
            fix="see what `uv run python -c 'import warp; warp.init()'` prints",
        )
    return judge_cuda(WARP, warp.version, _cuda_version(number) if number else None, driver_cuda())


def judge_cuda(
    package: str, version: str, built_for: tuple[int, int] | None, driver: tuple[int, int] | None
) -> Finding:
    """Judge whether a package can use the GPUs with the installed NVIDIA driver.

    A driver for an older minor version of CUDA is sufficient if the major version is the same: NVIDIA calls this minor
    version compatibility. Warp's own check is the same (``min_driver_version`` in its ``context.py``).
    """
    if built_for is None:
        seen = f"{package} {version} is built without CUDA, but there are GPUs"
        fix = f"install a build with CUDA ({SOURCES[package]})"
    elif driver is None:
        seen = "there are GPUs, but the NVIDIA driver's libcuda.so.1 cannot be loaded"
        fix = "start a container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, or install the driver again"
    elif driver[0] < built_for[0]:
        seen = f"{package} {version} is built for CUDA {dotted(built_for)}, "
        seen += f"but the NVIDIA driver supports CUDA only up to {dotted(driver)}"
        oldest = DRIVERS.get(built_for[0])
        fix = "update the driver" + (f" to R{oldest} or newer" if oldest else "")
        if driver[0] in DRIVERS:
            both = " and ".join(f"{name} ({source})" for name, source in SOURCES.items())
            fix += f", or install both {both} for CUDA {driver[0]}"
    else:
        return Finding(name=package, figure=f"{package} {version}, built for CUDA {dotted(built_for)}")
    return Finding(name=package, figure=seen, status=Status.FAIL, fix=f"{fix}, or {CPU_FIX}")


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest version of CUDA, major and minor, that the NVIDIA driver supports; None without a driver."""
    import pynvml  # not needed without a GPU

    with contextlib.suppress(pynvml.NVMLError), nvml():
        return _cuda_version(pynvml.nvmlSystemGetCudaDriverVersion_v2())
    return None


def _cuda_version(number: int) -> tuple[int, int]:
    """Return major and minor version of a number such as 12040."""
    return number // 1000, number % 1000 // 10


def check_gpus(gpus: Sequence[Gpu]) -> list[Finding]:
    """Check whether GPUs can be used, which other processes use them, and how much memory is free."""
    if not gpus:
        return []
    with nvml():
        return [_check_gpu(gpu) for gpu in gpus]


def total_bytes(gpu: Gpu) -> int | None:
    """Return the memory of a GPU in bytes; None if it is unknown."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError), nvml():
        return int(pynvml.nvmlDeviceGetMemoryInfo(_handle(gpu)).total)
    return None


def _handle(gpu: Gpu) -> Any:
    """Return NVML's handle of a GPU or MIG instance."""
    import pynvml

    return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) if gpu.is_mig else pynvml.nvmlDeviceGetHandleByIndex(gpu.card)


def _check_gpu(gpu: Gpu) -> Finding:
    import pynvml

    if gpu.fault:
        return _unusable(gpu, gpu.fault)
    try:
        handle = _handle(gpu)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError as error:
        # GPUs that share the host's memory do not support this query, and a container may forbid it.
        if getattr(error, "value", None) in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION):
            figure = f"{gpu.name}; its memory and processes are unknown ({error})"
            return Finding(name=f"GPU {gpu.index}", figure=figure)
        return _unusable(gpu, str(error))
    return judge_gpu(gpu, int(memory.free), int(memory.total), [pid for pid in pids if pid != os.getpid()])


def _unusable(gpu: Gpu, fault: str) -> Finding:
    fix = "see nvidia-smi: a lost GPU needs a reboot; a missing permission needs another container or job"
    figure = f"{gpu.name} cannot be used ({fault})"
    return Finding(name=f"GPU {gpu.index}", figure=figure, status=Status.WARNING, fix=fix)


def judge_gpu(gpu: Gpu, free_bytes: int, total_bytes: int, pids: Sequence[int]) -> Finding:
    """Judge whether a GPU is unused."""
    name, figure = f"GPU {gpu.index}", f"{gpu.name}, {free_bytes / GB:.1f} of {total_bytes / GB:.1f} GB free"
    if not pids and free_bytes >= UNUSED_SHARE * total_bytes:
        return Finding(name=name, figure=figure)
    who = f"process {', '.join(map(str, pids))}" if pids else "processes that cannot be seen from here"
    fix = "a run shares memory and time with them; choose other GPUs with --gpu-ids, or wait (see nvidia-smi)"
    return Finding(name=name, figure=f"{figure}, used by {who}", status=Status.WARNING, fix=fix)


def dotted(version: tuple[int, int]) -> str:
    """Format a version, such as 12.4."""
    return ".".join(map(str, version))
