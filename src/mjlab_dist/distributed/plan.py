"""Which devices the ranks of one machine take. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices of one machine's ranks, in order of local rank."""

    devices: tuple[str, ...]
    """Torch's (and Warp's) name of each rank's device, ``cpu`` or ``cuda:<index>``."""
    visible: str | None = None
    """What CUDA_VISIBLE_DEVICES must be for those names to hold; None leaves it as it is."""
    egl_ids: tuple[str | None, ...]
    """MUJOCO_EGL_DEVICE_ID of each rank: the physical index of its GPU; None leaves it as it is."""
    names: tuple[str, ...]
    """What the devices are, for people."""
    torch_threads: int
    """Threads that torch takes on each rank."""
    backend: Literal["gloo", "nccl"]
    """The process group's backend. NCCL refuses the CPU, and two ranks on one GPU; gloo takes any."""
