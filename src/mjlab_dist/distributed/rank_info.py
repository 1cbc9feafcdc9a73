"""What ranks tell each other before there is a process group: their devices, and later which envs are theirs."""

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
    """The device of one rank, and where it is."""

    host: str
    """Name of the machine."""
    device: str
    """Torch's name of the device on that machine, ``cpu`` or ``cuda:<index>``."""
    name: str
    """Model of the GPU or the CPU."""
    memory_gb: int
    """All memory of the GPU or the machine, in GB of 10^9 bytes, rounded."""
    capability: str | None
    """CUDA compute capability, such as ``9.0``; None on a CPU."""
    egl_device: str | None
    """What the rank found as MUJOCO_EGL_DEVICE_ID: the GPU that draws for it; None where that is not set."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the rank's process, usually the UUID of its GPU; None on a CPU, or if it is not set."""


@dataclass(frozen=True, kw_only=True)
class RankInfo(DeviceInfo):
    """One rank of a run with its device, as ``ranks.json`` shows it."""

    rank: int
    """Global rank."""
    pid: int
    """Its process on that machine."""
    first_env_id: int
    """Id of the rank's first env; the others follow."""
    num_envs: int
    """Envs of the rank."""
    seed: int
    """What the rank seeded itself with."""


def describe_device(device: str, egl_device: str | None) -> DeviceInfo:
    """Describe a device of this machine.

    Args:
        device: ``cpu`` or ``cuda:<index>``.
        egl_device: MUJOCO_EGL_DEVICE_ID of this process, if it has one.
    """
    if device == "cpu":
        import psutil  # noqa: PLC0415 (the launcher imports this module and needs none of it)

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
    """Give every rank the values of all ranks; waits for the slowest.

    Rank 0, in whose process the store may be, also waits until every rank has read: it may end the process on what it is told.

    Args:
        store: Where ranks meet; None on the only rank.
        rank: This rank.
        world_size: Number of ranks.
        key: What the value is; every rank uses the same, and each key once.
        value: This rank's value: anything that JSON holds.

    Returns:
        A value per rank, in order of ranks.
    """
    if store is None:
        return [value]
    store.set(f"{key}/{rank}", json.dumps(value))
    values = [json.loads(store.get(f"{key}/{other}")) for other in range(world_size)]
    store.set(f"{key}/read/{rank}", "")
    if rank == 0:
        store.wait([f"{key}/read/{other}" for other in range(world_size)])
    return values


def compare_devices(devices: Sequence[DeviceInfo]) -> str | None:
    """Tell unlike devices apart by model, memory and compute capability.

    Args:
        devices: The device of each rank, in order of ranks.

    Returns:
        One line that groups ranks by device; None where all are alike.
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
    """Refuse unlike devices.

    Args:
        devices: The device of each rank, in order of ranks.

    Raises:
        UserError: If they differ; the same on every rank.
    """
    difference = compare_devices(devices)
    if difference:
        raise UserError(f"--require-same-devices: {difference}; choose devices of one kind, or drop the flag")


def _cpu_name() -> str:
    """The CPU's model. Python's own ``platform.processor`` says no more than the architecture on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()
