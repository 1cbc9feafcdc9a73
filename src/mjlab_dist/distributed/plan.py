"""Plans of ranks: the device, the envs and the run directory of each rank. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mjlab_dist.runs.lease import Lease

# Variable that sets the order in which CUDA numbers GPUs, and its value for the order that NVML and nvidia-smi use
ORDER, BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """The device of one rank."""

    # Name of the device for PyTorch and Warp in the rank's process, cpu or cuda:<index>
    device: str
    # CUDA_VISIBLE_DEVICES of the rank's process, with this device only; None leaves the variable unchanged
    visible: str | None = None
    # Index in the list of the machine's GPUs; None if unknown, or on the CPU
    gpu_id: int | None = None
    # Name to display
    name: str
    # Number of PyTorch's threads
    torch_threads: int
    # Process group backend that the device supports. NCCL rejects CPUs and two ranks on a GPU; gloo accepts both.
    backend: Literal["gloo", "nccl"]


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Everything that a rank needs in addition to the config."""

    device: RankDevice
    # Number of envs; None if ranks first measure how many fit in memory
    num_envs: int | None
    # The run directory; rank 0 writes there
    run_dir: Path
    # Lease that reserves the run for this launch. Rank 0 checks the lease before each write. None if no other launch
    # can use the run.
    lease: Lease | None = None


def number_by_bus(environ: MutableMapping[str, str]) -> None:
    """Make CUDA order GPUs by PCI bus, unless the user chose an order. Has no effect after CUDA has started.

    By default, CUDA puts the fastest GPU first. On a machine with different GPUs, CUDA's GPU 1 may therefore differ
    from GPU 1 of nvidia-smi.
    """
    environ.setdefault(ORDER, BY_BUS)


def is_numbered_by_bus(environ: Mapping[str, str]) -> bool:
    """Return whether CUDA and NVML use the same indices after :func:`number_by_bus` was called."""
    return environ.get(ORDER, BY_BUS) == BY_BUS
