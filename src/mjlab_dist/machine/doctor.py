"""Whether this machine can train: what preflight checks before a run, and what slows or spoils runs besides. Imports no torch."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil
import pynvml

from mjlab_dist.machine.control_groups import cpu_quota, memory_room
from mjlab_dist.machine.devices import cores, find_gpus
from mjlab_dist.machine.preflight import (
    GB,
    LOW_BYTES,
    Finding,
    Status,
    check_directory,
    check_gpus,
    check_loopback,
    check_torch,
    check_versions,
    check_wandb,
    check_warp,
    dotted,
    driver_cuda,
    run_program,
    shown_size,
)
from mjlab_dist.machine.processes import LAUNCH

CAPTURABLE_DRIVER = (12, 4)
"""CUDA of the driver from which on physics is recorded on a GPU: the constant of mjlab_dist.sim, which imports torch."""

RANK_BYTES = 0.6 * GB
"""Memory that a CPU rank of cartpole-balance with 512 envs was seen to take for itself; one on a GPU takes more."""

LOW_MEMORY_BYTES = 2 * GB
"""Available memory in which a few ranks may not fit."""

LOW_CACHE_BYTES = 200 * 10**6
"""Free space that kernels or temporary files may need; those of the tasks here were seen to take 13 MB."""

LOW_SHARED_BYTES = 0.5 * GB
"""Space in /dev/shm that NCCL may need for several GPUs; a container has 64 MB unless told otherwise."""

NEEDED_FILES = 64
"""Files that a process must be allowed to open; a launcher and its ranks were seen to have 32 open each."""

LOW_FILES = 1024
"""Open files that NCCL on many GPUs may need; the usual limit."""

NETWORK_TIMEOUT_S = 3.0
"""Seconds that a server on the network has to answer."""

OWN_ADDRESS = "import socket; print(socket.gethostbyname(socket.gethostname()))"
"""Program that prints the address that this machine's own name leads to."""


def examine(log_root: Path, environ: Mapping[str, str]) -> list[Finding]:
    """Check this machine, in a few seconds at most.

    Args:
        log_root: Directory that is to hold all runs.
        environ: The environment.
    """
    return [
        check_versions(),
        *check_devices(),
        check_cores(),
        check_memory(),
        check_directory("log root", log_root, LOW_BYTES, "--log-root"),
        check_directory("temporary files", Path(tempfile.gettempdir()), LOW_CACHE_BYTES, "TMPDIR"),
        check_directory("kernel cache", kernel_cache(environ), LOW_CACHE_BYTES, "WARP_CACHE_PATH"),
        check_open_files(),
        check_loopback(),
        check_own_name(),
        check_drawing(environ),
        check_leftovers(),
        check_wandb(environ, NETWORK_TIMEOUT_S),
    ]


def check_devices() -> list[Finding]:
    """Check the driver, torch and Warp for it, and the GPUs; a machine without GPUs is in order."""
    try:
        gpus = find_gpus()
        if gpus:
            shared = [check_shared_memory(Path("/dev/shm"))] if len(gpus) > 1 else []  # noqa: S108
            return [check_driver(), check_torch(), check_warp(), *check_gpus(gpus), *shared]
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        no_driver = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if getattr(error, "value", None) not in no_driver:
            mend = "see what nvidia-smi says; a driver that was updated needs a reboot"
            return [Finding(name="GPUs", figure=f"the driver: {error}", status=Status.WARNING, mend=mend)]
    return [Finding(name="GPUs", figure="none: ranks train on the CPU")]


def check_driver() -> Finding:
    """The driver of this machine's GPUs."""
    pynvml.nvmlInit()
    try:
        version = str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
    return judge_driver(version, driver_cuda())


def judge_driver(version: str, cuda: tuple[int, int] | None) -> Finding:
    """Whether physics can be recorded on the GPUs.

    Args:
        version: The driver's own version.
        cuda: What :func:`~mjlab_dist.machine.preflight.driver_cuda` says.
    """
    figure = f"{version}, CUDA {dotted(cuda) if cuda else 'cannot be loaded'}"
    if cuda is not None and cuda < CAPTURABLE_DRIVER:
        return Finding(
            name="NVIDIA driver",
            figure=f"{figure}: physics cannot be recorded, which is slower",
            status=Status.WARNING,
            mend=f"update it to one for CUDA {dotted(CAPTURABLE_DRIVER)} or newer (R550; R580 for CUDA 13)",
        )
    return Finding(name="NVIDIA driver", figure=figure)


def check_shared_memory(directory: Path) -> Finding:
    """Whether ranks on several GPUs can hand each other data.

    Args:
        directory: Where shared memory is mounted.
    """
    free = shutil.disk_usage(directory).free
    figure = f"{directory}: {shown_size(free)} free"
    if free < LOW_SHARED_BYTES:
        mend = "NCCL may need more: docker run --shm-size=1g, or --ipc=host"
        return Finding(name="shared memory", figure=figure, status=Status.WARNING, mend=mend)
    return Finding(name="shared memory", figure=figure)


def check_cores(root: Path = Path("/")) -> Finding:
    """How many cores this process has, and whether it is told so.

    Args:
        root: Where the system's files are.
    """
    usable, quota = cores(), cpu_quota(root)
    figure = f"{usable} of {os.cpu_count()}"
    if quota < usable:
        few = sorted(os.sched_getaffinity(0))[: max(1, int(quota))]
        return Finding(
            name="CPU cores",
            figure=f"{figure}, though the time of {quota:g} only: more threads than that hold each other up",
            status=Status.WARNING,
            mend=f"start commands with taskset -c {','.join(map(str, few))}",
        )
    return Finding(name="CPU cores", figure=figure)


def check_memory(root: Path = Path("/")) -> Finding:
    """How much memory is available.

    Args:
        root: Where the system's files are.
    """
    available = min(psutil.virtual_memory().available, memory_room(root))
    figure = f"{shown_size(available)} available"
    if available >= LOW_MEMORY_BYTES:
        return Finding(name="memory", figure=figure)
    return Finding(
        name="memory",
        figure=f"{figure}; a rank takes {shown_size(RANK_BYTES)} or more",
        status=Status.FAIL if available < RANK_BYTES else Status.WARNING,
        mend="end what else runs (ps aux --sort=-rss), or give the container or job more",
    )


def check_open_files() -> Finding:
    """How many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= LOW_FILES:
        return Finding(name="open files", figure="no limit" if soft == resource.RLIM_INFINITY else f"up to {soft}")
    can_rise = hard == resource.RLIM_INFINITY or hard >= LOW_FILES
    return Finding(
        name="open files",
        figure=f"up to {soft}",
        status=Status.FAIL if soft < NEEDED_FILES else Status.WARNING,
        mend=f"ulimit -n {LOW_FILES}" if can_rise else "raise nofile in /etc/security/limits.conf",
    )


def check_own_name() -> Finding:
    """Whether this machine's own name leads to it."""
    name = socket.gethostname()
    try:
        address = run_program(OWN_ADDRESS, timeout_s=NETWORK_TIMEOUT_S)
    except OSError as error:
        figure = f"{name}: {error}"
    else:
        figure = f"{name}: {address}"
        if _is_own(address):
            return Finding(name="own name", figure=figure)
        figure += ", which is not this machine"
    mend = f"ranks of one machine do without; for several, add to /etc/hosts: 127.0.1.1 {name}"
    return Finding(name="own name", figure=figure, status=Status.WARNING, mend=mend)


def check_drawing(environ: Mapping[str, str], library: str = "libEGL.so.1") -> Finding:
    """Whether MuJoCo can draw without a screen.

    Args:
        environ: The environment.
        library: The library that it needs for that.
    """
    chosen = environ.get("MUJOCO_GL", "egl")
    if chosen.lower() != "egl":
        return Finding(name="drawing", figure=f"MUJOCO_GL={chosen}")
    try:
        ctypes.CDLL(library)
    except OSError:
        figure = f"{library} cannot be loaded: MuJoCo Warp's slower ray tracer draws videos"
        mend = "sudo apt install libegl1 (its name on Debian and Ubuntu)"
        return Finding(name="drawing", figure=figure, status=Status.WARNING, mend=mend)
    return Finding(name="drawing", figure=library)


def check_leftovers() -> Finding:
    """Whether an earlier launch left processes behind: such as have no launcher among their ancestors any more."""
    own = os.getuid()
    left = [p.pid for p in psutil.process_iter() if _is_of_a_launch(p, own) and not _has_launcher(p)]
    if not left:
        return Finding(name="leftover processes", figure="none")
    pids = " ".join(map(str, sorted(left)))
    figure = f"{len(left)} of an earlier launch, which take memory and time"
    return Finding(name="leftover processes", figure=figure, status=Status.WARNING, mend=f"kill -9 {pids}")


def kernel_cache(environ: Mapping[str, str]) -> Path:
    """Where Warp keeps compiled kernels.

    Args:
        environ: The environment.
    """
    caches = Path(environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(environ.get("WARP_CACHE_PATH", caches / "warp"))


def _is_own(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_of_a_launch(process: psutil.Process, uid: int) -> bool:
    try:
        return process.uids().real == uid and LAUNCH in process.environ()
    except psutil.Error:
        return False  # it has just ended


def _has_launcher(process: psutil.Process) -> bool:
    try:
        return any(_is_launcher(ancestor) for ancestor in process.parents())
    except psutil.NoSuchProcess:
        return True  # it has just ended


def _is_launcher(process: psutil.Process) -> bool:
    """Whether a process may have launched ranks: a Python that is none itself. Orphans are given to init, or to the like of it."""
    try:
        return Path(process.exe()).name.startswith("python") and LAUNCH not in process.environ()
    except psutil.Error:
        return False  # another user's
