"""Checks of this machine before ranks start. Imports no torch.

``mjlab-dist doctor`` checks the same, and more: :mod:`mjlab_dist.machine.doctor`.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.errors import PreflightError, byte_size
from mjlab_dist.imports import PACKAGE, requirements, unmet
from mjlab_dist.machine import GB, Finding, Status
from mjlab_dist.machine.devices import Gpu
from mjlab_dist.machine.gpu_checks import check_gpus, check_torch, check_warp
from mjlab_dist.machine.wandb_check import check_wandb
from mjlab_dist.runs.run_dir import chosen_log_dir

# Shared memory for the semaphores of a launch, in bytes: ten and two per rank, with a page each
SEMAPHORES_BYTES = 256 * 1024

# Size of a test file, in bytes. Writing a file is the only test of a quota, which can forbid writing even if the disk
# has free space.
NEEDED_BYTES = 10**6

# Free space below which a run may fill the disk
LOW_BYTES = GB

# Free space that compiled kernels or temporary files may need; the kernels of this package's tasks take 13 MB
LOW_CACHE_BYTES = 200 * 10**6

SEE_DOCTOR = "uv run mjlab-dist doctor checks more"

# Seconds to wait for the server of Weights & Biases before a run starts
WANDB_TIMEOUT_S = 1.0


def check_machine(
    config: TrainConfig,
    devices: Sequence[RankDevice],
    environ: Mapping[str, str],
    gpus: Sequence[Gpu],
    resumed: Path | None = None,
) -> list[str]:
    """Check this machine before ranks start, in a fraction of a second; ``--logger wandb`` may add a second.

    Returns:
        A line per warning: GPUs that other processes use, a disk that is nearly full, curves that cannot be uploaded.
    """
    # Versions, directories that will be written, and what ranks in processes of their own need
    flag, directory = ("--log-root", Path(config.log_root)) if resumed is None else ("--resume", resumed)
    found = [("", check_versions()), (f"{flag} ", check_directory("log root", directory, LOW_BYTES, flag))]
    logs = chosen_log_dir(config, environ)
    if logs:
        flag = "TORCHRUNX_LOG_DIR" if "TORCHRUNX_LOG_DIR" in environ else "--torchrunx-log-dir"
        found.append((f"{flag} ", check_directory("logs of the ranks", Path(logs), LOW_BYTES, flag)))
    for name, directory, flag in (
        ("kernel cache", kernel_cache(environ), "WARP_CACHE_PATH"),
        ("temporary files", Path(tempfile.gettempdir()), "TMPDIR"),
    ):
        found.append((f"{flag} ", check_directory(name, directory, 0, flag)))
    if len(devices) > 1 or config.max_restarts or config.hosts:
        require_connections()
    # GPUs
    if devices[0].device != "cpu":
        found += [("", check_torch()), ("", check_warp())]
        chosen = [gpu for gpu in gpus if any(gpu.index == device.gpu_id for device in devices)]
        found += [(f"{finding.name}: ", finding) for finding in check_gpus(chosen)]
    # Weights & Biases
    if "wandb" in config.logger:
        wandb = check_wandb(environ, WANDB_TIMEOUT_S)
        found.append((f"{wandb.name}: ", wandb))
    # Raise on the first failure; otherwise return all warnings
    warnings: list[str] = []
    for about, finding in found:
        line = f"{about}{finding.figure}; {finding.fix}"
        if finding.status is Status.FAIL:
            raise PreflightError(f"{line} ({SEE_DOCTOR})")
        if finding.status is Status.WARNING:
            warnings.append(line)
    return warnings


def check_versions() -> Finding:
    """Check whether Python and the installed packages have the versions that this package requires."""
    python, needed = platform.python_version(), metadata.metadata(PACKAGE)["Requires-Python"]
    wrong = [] if SpecifierSet(needed).contains(python) else [f"python {python} ({needed} is needed)"]
    required = requirements()
    if wrong := [*wrong, *unmet(required)]:
        fix = "uv sync --inexact, or install these versions with your package manager"
        return Finding(name="versions", figure=", ".join(wrong), status=Status.FAIL, fix=fix)
    here = f"{PACKAGE} {metadata.version(PACKAGE)}"
    return Finding(name="versions", figure=f"Python {python}, {here}, the {len(required)} packages that it requires")


def check_directory(name: str, directory: Path, low_bytes: int, setting: str) -> Finding:
    """Check whether a directory can be made and written to, and how much space is free."""
    more_space = f"make room there, or use {setting} to choose a directory on another disk"
    try:
        there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(NEEDED_BYTES))
            file.flush()
            os.fsync(file.fileno())  # some file systems check quotas only at this point
        free = shutil.disk_usage(there).free
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = more_space if full else f"set {setting} to a directory that you can write to"
        return Finding(name=name, figure=f"{directory}: {error.strerror}", status=Status.FAIL, fix=fix)
    figure = f"{directory}: {byte_size(free)} free"
    if free < low_bytes:
        return Finding(name=name, figure=figure, status=Status.WARNING, fix=more_space)
    return Finding(name=name, figure=figure)


def kernel_cache(environ: Mapping[str, str]) -> Path:
    """Return the directory where Warp stores compiled kernels."""
    caches = Path(environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return Path(environ.get("WARP_CACHE_PATH", caches / "warp"))


def require_connections() -> None:
    """Raise if processes of this machine cannot share semaphores or connect to each other."""
    for finding in (check_semaphores(), check_loopback()):
        if finding.status is Status.FAIL:
            raise PreflightError(f"{finding.figure}; {finding.fix} ({SEE_DOCTOR})")


def require_kernel_cache(environ: Mapping[str, str]) -> None:
    """Raise if Warp cannot store compiled kernels. Warp itself would notice only after all libraries are imported."""
    flag = "WARP_CACHE_PATH"
    finding = check_directory("kernel cache", kernel_cache(environ), 0, flag)
    if finding.status is Status.FAIL:
        raise PreflightError(f"{flag} {finding.figure}; {finding.fix}")


def check_semaphores() -> Finding:
    """Check that shared memory has room for the semaphores that are needed to start several ranks."""
    name, directory = "semaphores", Path("/dev/shm")  # noqa: S108 (where Linux keeps semaphores)
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(SEMAPHORES_BYTES))
            file.flush()
    except OSError as error:
        fix = "remove files that old programs left there, or make the directory larger (docker run --shm-size)"
        return Finding(name=name, figure=f"{directory}: {error.strerror}", status=Status.FAIL, fix=fix)
    return Finding(name=name, figure=f"{directory}: {byte_size(shutil.disk_usage(directory).free)} free")


def check_loopback() -> Finding:
    """Check whether processes of this machine can connect to each other."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=1),
        ):
            return Finding(name="loopback", figure="a port of 127.0.0.1 accepts connections")
    except OSError as error:
        return Finding(
            name="loopback",
            figure=f"no connection to 127.0.0.1: {error.strerror or error}",
            status=Status.FAIL,
            fix="sudo ip link set lo up, or allow it in the firewall: ranks in own processes need this interface",
        )
