"""Which devices the ranks of one machine take. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices of one machine's ranks, in order of local rank."""

    devices: tuple[str, ...]
    """Torch's (and Warp's) name of each rank's device in its process, ``cpu`` or ``cuda:<index>``."""
    visible: tuple[str, ...] | None = None
    """CUDA_VISIBLE_DEVICES of each rank's process, which names its device alone; None leaves the variable as it is."""
    gpu_ids: tuple[int, ...] = ()
    """Indices, in the list of the machine's GPUs, of those that the ranks take and that are known; empty on the CPU."""
    egl_ids: tuple[str | None, ...]
    """MUJOCO_EGL_DEVICE_ID of each rank: the physical index of its GPU; None leaves it as it is."""
    names: tuple[str, ...]
    """What the devices are, for people."""
    torch_threads: int
    """Threads that torch takes on each rank."""
    backend: Literal["gloo", "nccl"]
    """The process group's backend. NCCL refuses the CPU, and two ranks on one GPU; gloo takes any."""
