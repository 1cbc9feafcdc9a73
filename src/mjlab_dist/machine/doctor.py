"""Check whether this machine can train. Runs the checks that precede each run, and others. Imports no torch."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil
import pynvml

from mjlab_dist.errors import byte_size
from mjlab_dist.machine import GB, Finding, Status
from mjlab_dist.machine.control_groups import ROOT, cores, cpu_quota, memory_room
from mjlab_dist.machine.devices import find_gpus, nvml
from mjlab_dist.machine.gpu_checks import check_gpus, check_torch, check_warp, dotted, driver_cuda
from mjlab_dist.machine.preflight import (
    LOW_BYTES,
    LOW_CACHE_BYTES,
    check_directory,
    check_loopback,
    check_semaphores,
    check_versions,
    kernel_cache,
)
from mjlab_dist.machine.processes import LAUNCH
from mjlab_dist.machine.wandb_check import check_wandb

# Oldest CUDA driver that can record physics as a CUDA graph. The value is repeated here, because importing it from
# mjlab_dist.sim would import torch.
CAPTURABLE_DRIVER = (12, 4)

# Memory of a CPU rank of cartpole-balance with 512 envs, as measured; a rank on a GPU needs more
RANK_BYTES = 0.6 * GB

# Available memory below which a few ranks may not fit
LOW_MEMORY_BYTES = 2 * GB

# Space in /dev/shm that NCCL may need for several GPUs; a container has 64 MB by default
LOW_SHARED_BYTES = 0.5 * GB

# Number of files that a process must be allowed to open. The launcher and the ranks open about 32 files each.
NEEDED_FILES = 64

# Number of files that a process should be allowed to open. NCCL may open this many if a run uses many GPUs. Most
# systems allow 1024 files by default.
LOW_FILES = 1024

# Seconds to wait for a server on the network
NETWORK_TIMEOUT_S = 3.0

# Seconds to wait for a picture
DRAW_TIMEOUT_S = 30.0

# Program that draws a picture
DRAW = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 16, 16)
renderer.update_scene(data)
assert renderer.render().any(), "the picture is black"
"""


def examine(log_root: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Check this machine, in a few seconds at most."""
    return [
        check_versions(),
        *check_devices(),
        check_cores(),
        check_memory(),
        check_directory("log root", log_root, LOW_BYTES, "--log-root"),
        check_directory("temporary files", Path(tempfile.gettempdir()), LOW_CACHE_BYTES, "TMPDIR"),
        check_directory("kernel cache", kernel_cache(environ), LOW_CACHE_BYTES, "WARP_CACHE_PATH"),
        check_open_files(),
        check_semaphores(),
        check_loopback(),
        check_drawing(environ),
        check_leftovers(),
        check_wandb(environ, NETWORK_TIMEOUT_S),
    ]


def check_devices() -> list[Finding]:
    """Check the GPUs, their driver, and whether torch and Warp support this driver; a machine without GPUs passes."""
    try:
        gpus = find_gpus()
        if gpus:
            shared = [check_shared_memory(Path("/dev/shm"))] if len(gpus) > 1 else []  # noqa: S108
            return [check_driver(), check_torch(), check_warp(), *check_gpus(gpus), *shared]
        with nvml():
            pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        no_driver = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if getattr(error, "value", None) not in no_driver:
            fix = "run nvidia-smi to see the error; after an update of the driver, reboot"
            return [Finding(name="GPUs", figure=f"the driver: {error}", status=Status.WARNING, fix=fix)]
    return [Finding(name="GPUs", figure="none: ranks train on the CPU")]


def check_driver() -> Finding:
    """Check whether the driver of this machine's GPUs can record physics as CUDA graphs."""
    with nvml():
        version = str(pynvml.nvmlSystemGetDriverVersion())
    cuda = driver_cuda()
    figure = f"{version}, CUDA {dotted(cuda) if cuda else 'cannot be loaded'}"
    if cuda is not None and cuda < CAPTURABLE_DRIVER:
        return Finding(
            name="NVIDIA driver",
            figure=f"{figure}: the physics runs without CUDA graphs, which is slower",
            status=Status.WARNING,
            fix=f"update the driver to R550 (CUDA {dotted(CAPTURABLE_DRIVER)}) or newer; for CUDA 13, to R580 or newer",
        )
    return Finding(name="NVIDIA driver", figure=figure)


def check_shared_memory(directory: Path) -> Finding:
    """Check whether there is enough shared memory for ranks on several GPUs."""
    free = shutil.disk_usage(directory).free
    figure = f"{directory}: {byte_size(free)} free"
    if free < LOW_SHARED_BYTES:
        fix = "NCCL may need more: docker run --shm-size=1g, or --ipc=host"
        return Finding(name="shared memory", figure=figure, status=Status.WARNING, fix=fix)
    return Finding(name="shared memory", figure=figure)


def check_cores(root: Path = ROOT) -> Finding:
    """Show how many cores this process may use."""
    quota = cpu_quota(root)
    figure = f"{cores(root)} of {os.cpu_count()}"
    return Finding(name="CPU cores", figure=figure if quota == math.inf else f"{figure} (CPU quota: {quota:g})")


def check_memory(root: Path = ROOT) -> Finding:
    """Check how much memory is available."""
    available = min(psutil.virtual_memory().available, memory_room(root))
    figure = f"{byte_size(available)} available"
    if available >= LOW_MEMORY_BYTES:
        return Finding(name="memory", figure=figure)
    return Finding(
        name="memory",
        figure=f"{figure}; a rank takes {byte_size(RANK_BYTES)} or more",
        status=Status.FAIL if available < RANK_BYTES else Status.WARNING,
        fix="end other programs (ps aux --sort=-rss), or give the container or job more memory",
    )


def check_open_files() -> Finding:
    """Check how many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LOW_FILES:
        return Finding(name="open files", figure="no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}")
    can_rise = hard == resource.RLIM_INFINITY or hard >= LOW_FILES
    return Finding(
        name="open files",
        figure=f"up to {soft}",
        status=Status.FAIL if soft < NEEDED_FILES else Status.WARNING,
        fix=f"ulimit -n {LOW_FILES}" if can_rise else "raise nofile in /etc/security/limits.conf",
    )


def check_drawing(environ: Mapping[str, str]) -> Finding:
    """Draw a picture with MuJoCo, in a process of its own, because a broken driver may crash it."""
    chosen = environ.get("MUJOCO_GL", "egl")
    try:
        process = subprocess.run(
            [sys.executable, "-P", "-c", DRAW],
            env={**environ, "MUJOCO_GL": chosen},
            check=False,
            capture_output=True,
            text=True,
            timeout=DRAW_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        reason = f"no picture within {DRAW_TIMEOUT_S:g} s"
    else:
        if process.returncode == 0:
            return Finding(name="drawing", figure=f"a picture with {chosen}")
        reason = process.stderr.strip().rpartition("\n")[2] or f"exit code {process.returncode}"
    return Finding(
        name="drawing",
        figure=f"MuJoCo cannot draw with {chosen} ({reason}), so MuJoCo Warp's slower ray tracer may draw videos",
        status=Status.WARNING,
        fix="unset MUJOCO_GL" if "MUJOCO_GL" in environ else "sudo apt install libegl1 (Debian's and Ubuntu's package)",
    )


def check_leftovers() -> Finding:
    """Check whether earlier launches left processes behind. Such a process has no launcher among its ancestors."""
    of_launches = [
        process
        for process in psutil.process_iter(["uids", "environ"])
        if LAUNCH in (process.info["environ"] or {}) and process.info["uids"].real == os.getuid()
    ]
    left = [process.pid for process in of_launches if not _has_launcher(process)]
    if not left:
        return Finding(name="leftover processes", figure="none")
    pids = " ".join(map(str, sorted(left)))
    figure = f"{len(left)} from earlier launches, which still use memory and processor time"
    return Finding(name="leftover processes", figure=figure, status=Status.WARNING, fix=f"kill -9 {pids}")


def _has_launcher(process: psutil.Process) -> bool:
    """Return whether an ancestor may have launched a process: a Python process that is not a rank.

    The parent of an orphan is init or a similar process, which is not a Python process.
    """
    try:
        ancestors = process.parents()
    except psutil.NoSuchProcess:
        return True  # the process has just ended
    for ancestor in ancestors:
        with contextlib.suppress(psutil.Error):  # the ancestor belongs to another user
            if Path(ancestor.exe()).name.startswith("python") and LAUNCH not in ancestor.environ():
                return True
    return False
