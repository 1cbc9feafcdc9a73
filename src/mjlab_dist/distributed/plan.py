"""What is settled about ranks before they start. Imports the standard library only."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjlab_dist.budget import Budget

ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
"""Variable by which CUDA numbers GPUs, and its value for the order that NVML and nvidia-smi use."""


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """The device of one rank."""

    device: str
    """Torch's (and Warp's) name of the device in the rank's process, ``cpu`` or ``cuda:<index>``."""
    visible: str | None = None
    """CUDA_VISIBLE_DEVICES of the rank's process, which names this device alone; None leaves the variable as it is."""
    gpu_id: int | None = None
    """Index in the list of the machine's GPUs; None if it is unknown, and on the CPU."""
    name: str
    """Name for people."""
    torch_threads: int
    """Number of torch's threads."""
    backend: Literal["gloo", "nccl"]
    """Backend of the process group that the device allows. NCCL refuses the CPU, and two ranks on one GPU; gloo takes any."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """What a rank is started with, next to the config."""

    device: RankDevice
    """Its device."""
    budget: Budget | None
    """Its envs and iterations; None where ranks measure how many envs their memory holds."""
    run_dir: Path
    """The run directory; rank 0 writes there."""


def number_by_bus(environ: MutableMapping[str, str]) -> None:
    """Have CUDA number GPUs by PCI bus unless the user chose an order. Takes effect before CUDA starts.

    CUDA's own default is the fastest GPU first. On a machine with different GPUs, index 1 is then another card than the
    one that nvidia-smi calls 1.

    Args:
        environ: The process's environment; processes that it starts inherit the order.
    """
    environ.setdefault(ORDER, BY_BUS)


def is_numbered_by_bus(environ: Mapping[str, str]) -> bool:
    """Return whether CUDA's indices are those of NVML, once :func:`number_by_bus` has been called.

    Args:
        environ: The environment.
    """
    return environ.get(ORDER, BY_BUS) == BY_BUS
