"""Which devices the ranks of one machine take. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Literal

ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""Variable by which CUDA numbers GPUs, and its value for the order that NVML and nvidia-smi use."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The devices of one machine's ranks, in order of local rank."""

    devices: tuple[str, ...]
    """Torch's (and Warp's) name of each rank's device in its process, ``cpu`` or ``cuda:<index>``."""
    visible: tuple[str, ...] | None = None
    """CUDA_VISIBLE_DEVICES of each rank's process, which names its device alone; None leaves the variable as it is."""
    gpu_ids: tuple[int, ...] = ()
    """Indices, in the list of the machine's GPUs, of those that the ranks take and that are known; empty on the CPU."""
    names: tuple[str, ...]
    """What the devices are, for people."""
    torch_threads: int
    """Threads that torch takes on each rank."""
    backend: Literal["gloo", "nccl"]
    """The process group's backend. NCCL refuses the CPU, and two ranks on one GPU; gloo takes any."""


def number_by_bus(environ: MutableMapping[str, str]) -> None:
    """Have CUDA number GPUs by PCI bus unless the user chose an order. Takes effect before CUDA starts.

    CUDA's own default is the fastest GPU first. On a machine with different GPUs, index 1 is then another card than the
    one that nvidia-smi calls 1.

    Args:
        environ: The process's environment; processes that it starts inherit the order.
    """
    environ.setdefault(ORDER, BY_BUS)


def is_numbered_by_bus(environ: Mapping[str, str]) -> bool:
    """Whether CUDA's indices are those of NVML, once :func:`number_by_bus` has been called.

    Args:
        environ: The environment.
    """
    return environ.get(ORDER, BY_BUS) == BY_BUS
