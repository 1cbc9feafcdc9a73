"""Descriptions of the device and the envs of each rank; ranks exchange them before there is a process group."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mjlab_dist.distributed.rank import in_words
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    """Device of one rank, and its machine."""

    # Name of the machine
    host: str
    # Name of the device for PyTorch, cpu or cuda:<index>. The index is valid in the rank's process only.
    device: str
    # Model of the GPU or the CPU
    name: str
    # Total memory of the GPU or the machine, in GB (10^9 bytes), rounded
    memory_gb: int
    # CUDA compute capability, such as 9.0; None on a CPU
    capability: str | None
    # MUJOCO_EGL_DEVICE_ID of the rank's process: the GPU that renders for the rank; None if it is not set
    egl_device: str | None
    # CUDA_VISIBLE_DEVICES of the rank's process, usually the UUID of its GPU; None on the CPU, or if it is not set
    visible: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankInfo(DeviceInfo):
    """One rank of a run with its device: an entry of ``ranks.json``."""

    rank: int
    pid: int
    # ID of the rank's first env; its other envs have the following IDs
    first_env_id: int
    num_envs: int
    seed: int


def describe_device(device: str, egl_device: str | None) -> DeviceInfo:
    """Describe a device of this machine."""
    if device == "cpu":
        import psutil  # the launcher imports this module without needing psutil

        name, memory, capability = _cpu_name(), psutil.virtual_memory().total, None
    else:
        import torch

        properties = torch.cuda.get_device_properties(device)
        name, memory = properties.name, properties.total_memory
        capability = f"{properties.major}.{properties.minor}"
    return DeviceInfo(
        host=socket.gethostname(),
        device=device,
        name=name,
        memory_gb=round(memory / 1e9),
        capability=capability,
        egl_device=egl_device,
        visible=None if device == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def exchange(store: Store | None, rank: int, world_size: int, key: str, value: Any) -> list[Any]:
    """Wait until every rank has passed a value, and return the values of all ranks, in order of rank."""
    if store is None:
        return [value]
    store.set(f"{key}/{rank}", json.dumps(value))
    values = [json.loads(store.get(f"{key}/{other}")) for other in range(world_size)]
    # The store may be in rank 0's process, which may end after the exchange. Rank 0 therefore waits until all ranks
    # have read the values.
    store.set(f"{key}/read/{rank}", "")
    if rank == 0:
        store.wait([f"{key}/read/{other}" for other in range(world_size)])
    return values


def compare_devices(devices: Sequence[DeviceInfo]) -> str | None:
    """Compare devices by model, memory and compute capability.

    Returns:
        One line that groups ranks by device; None if all devices are equal.
    """
    groups: dict[tuple[str, int, str | None], list[int]] = {}
    for rank, info in enumerate(devices):
        groups.setdefault((info.name, info.memory_gb, info.capability), []).append(rank)
    if len(groups) == 1:
        return None
    shown = [
        f"{in_words(ranks)}: {name}, {memory_gb} GB" + (f", compute capability {capability}" if capability else "")
        for (name, memory_gb, capability), ranks in groups.items()
    ]
    return f"devices differ ({'; '.join(shown)})"


def require_same(devices: Sequence[DeviceInfo]) -> None:
    """Raise if devices differ."""
    difference = compare_devices(devices)
    if difference:
        raise UserError(f"--require-same-devices: {difference}; choose devices of one kind, or drop the flag")


def _cpu_name() -> str:
    """Return the CPU's model. On Linux, Python's ``platform.processor`` returns only the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
