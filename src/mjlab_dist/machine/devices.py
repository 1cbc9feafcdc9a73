"""Which devices the ranks of this machine take, as NVIDIA's management library (NVML) lists them. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankDevice, outside_launcher
from mjlab_dist.distributed.plan import ORDER, is_numbered_by_bus
from mjlab_dist.errors import UserError

logger = logging.getLogger(__name__)

CPU_MEND = "use --gpu-ids None to train on the CPU"

OTHER_GPUS = "see nvidia-smi, or choose other GPUs"

MIG = "MIG-"
"""How UUIDs of MIG instances begin."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or one MIG instance of a GPU."""

    index: int
    """What ``--gpu-ids`` takes where CUDA_VISIBLE_DEVICES is unset. MIG instances count one by one, in place of their GPU."""
    card: int
    """NVML's index of the physical GPU: its position by PCI bus, as nvidia-smi prints it."""
    uuid: str
    """UUID, ``GPU-...`` or ``MIG-...``; empty if the driver has none."""
    card_uuid: str
    """UUID of the physical GPU."""
    name: str
    """Its model."""
    fault: str = ""
    """Why it cannot be used, such as ``GPU is lost``; empty if it can."""

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith(MIG)


class _Visible(NamedTuple):
    """A device that CUDA_VISIBLE_DEVICES lists."""

    token: str
    """Value of CUDA_VISIBLE_DEVICES with which a process sees this device alone: a UUID where possible."""
    gpu: Gpu | None
    """The device; None if only CUDA can resolve the token."""


def find_gpus() -> list[Gpu]:
    """Return the machine's GPUs and MIG instances, whatever CUDA_VISIBLE_DEVICES lists; none without a working driver.

    A GPU that cannot be used keeps its place, so that the indices of the others do not shift.
    """
    import pynvml  # noqa: PLC0415 (needless where help is printed)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = [gpu for card in range(pynvml.nvmlDeviceGetCount()) for gpu in _query_card(card)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return [dataclasses.replace(gpu, index=i) for i, gpu in enumerate(found)]


def plan_devices(config: TrainConfig, environ: Mapping[str, str], gpus: list[Gpu]) -> tuple[RankDevice, ...]:
    """Choose a device for every rank that this process is going to start.

    Args:
        config: The run's config.
        environ: The environment, for CUDA_VISIBLE_DEVICES.
        gpus: The machine's GPUs.

    Raises:
        UserError: If the chosen GPUs are not there, cannot be used, are repeated, are mixed with CPU ranks, or have no
            name that all hosts share.
    """
    chosen = config.gpu_ids
    if config.cpu_ranks is not None:
        if config.cpu_ranks < 1:
            raise UserError(f"--cpu-ranks {config.cpu_ranks}: must be at least 1")
        if chosen not in (None, "auto"):
            raise UserError(f"--cpu-ranks {config.cpu_ranks}: excludes --gpu-ids {_shown(chosen)}; drop one of the two")
        return _cpus(config.cpu_ranks, max(1, cores() // config.cpu_ranks))
    if chosen is None:
        return _cpus(1, cores())
    visible = _visible(environ, gpus)
    if isinstance(chosen, tuple):
        taken = [visible[i] for i in _checked_indices(chosen, environ, visible)]
    else:
        taken = _usable(visible, first_only=chosen == "auto")
    if chosen == "all" and not taken:
        raise UserError(f"--gpu-ids all: {_seen(environ, taken)}; {CPU_MEND}")
    if taken:
        return _gpus(_by_index(taken, config.hosts, environ) if len(config.hosts) > 1 else taken)
    if environ.get("CUDA_VISIBLE_DEVICES") != "":
        logger.warning("No GPU found: training on the CPU (use --gpu-ids None to avoid this warning).")
    return _cpus(1, cores())


def plan_own_device(config: TrainConfig, rank: Rank, environ: Mapping[str, str], gpus: list[Gpu]) -> RankDevice:
    """Choose the device of one rank that another launcher (torchrun, SLURM) started.

    Args:
        config: The run's config; of its ``gpu_ids`` only None matters, which means the CPU.
        rank: Which rank this is.
        environ: The environment, for CUDA_VISIBLE_DEVICES.
        gpus: The machine's GPUs.

    Raises:
        UserError: If there are fewer GPUs than ranks here, or this rank's cannot be used.
    """
    visible = [] if config.gpu_ids is None or config.cpu_ranks is not None else _visible(environ, gpus)
    if not visible:
        # torchrun sets OMP_NUM_THREADS; SLURM binds each task to its own cores.
        return _cpus(1, int(environ.get("OMP_NUM_THREADS") or cores()))[0]
    if len(visible) == 1 and outside_launcher(environ) == "slurm":
        # SLURM can show each task its own GPU only.
        return _gpus(visible)[0]
    if rank.local_rank >= len(visible):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {_seen(environ, visible)}; start one process per GPU")
    if fault := _fault(visible[rank.local_rank]):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {fault}; {OTHER_GPUS}, by CUDA_VISIBLE_DEVICES")
    return _gpus(visible)[rank.local_rank]


def in_this_process(device: RankDevice, environ: Mapping[str, str], gpus: list[Gpu]) -> RankDevice | None:
    """Name a rank's device as this process sees it, for a process that is not the rank's own, such as a notebook.

    CUDA reads CUDA_VISIBLE_DEVICES once per process. That may have happened before, with another value, and the
    process may train on another device later.

    Args:
        device: The rank's device.
        environ: The environment in which the device was chosen.
        gpus: The machine's GPUs.

    Returns:
        The device, for a process whose CUDA_VISIBLE_DEVICES stays as it is; None if this process does not see it.
    """
    if device.visible is None:
        return device
    index = _index_here(device.visible, [listed.token for listed in _visible(environ, gpus)])
    return None if index is None else dataclasses.replace(device, device=f"cuda:{index}", visible=None)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _index_here(token: str, tokens: list[str]) -> int | None:
    """Return CUDA's index, in this process, of the device that a token names; None if CUDA does not show it."""
    if not token.startswith("GPU-"):
        # CUDA shows one MIG instance per process, and for indices keeps the order of the list.
        return None if token.startswith(MIG) and tokens != [token] else tokens.index(token)
    import torch

    uuids = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
    return uuids.index(token) if token in uuids else None


def _query_card(card: int) -> list[Gpu]:
    """Return a GPU; if it is in MIG mode, its instances."""
    import pynvml  # noqa: PLC0415

    uuid, name, fault = "", "GPU", ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(card)
        uuid = _query(pynvml.nvmlDeviceGetUUID, handle) or uuid
        name = _query(pynvml.nvmlDeviceGetName, handle) or name
        mode = _query(pynvml.nvmlDeviceGetMigMode, handle)
        if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            if found := _query_instances(handle):
                return [
                    Gpu(index=0, card=card, uuid=own, card_uuid=uuid, name=own_name or f"{name} MIG")
                    for own, own_name in found
                ]
            fault = "it is in MIG mode and has no instance: create one with nvidia-smi mig"
    except pynvml.NVMLError as error:
        fault = str(error)
    return [Gpu(index=0, card=card, uuid=uuid, card_uuid=uuid, name=name, fault=fault)]


def _query_instances(handle: Any) -> list[tuple[str, str | None]]:
    """Return UUID and model of every MIG instance of a GPU that this user may use."""
    import pynvml  # noqa: PLC0415

    found: list[tuple[str, str | None]] = []
    for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        # There need not be an instance at every index, and a container may have some of them only.
        with contextlib.suppress(pynvml.NVMLError):
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
            uuid = str(pynvml.nvmlDeviceGetUUID(instance))
            found.append((uuid, _query(pynvml.nvmlDeviceGetName, instance)))
    return found


def _query(function: Callable[[Any], Any], handle: Any) -> Any:
    """Return the result of an NVML function that is not essential; None if it fails on a GPU that is not lost."""
    import pynvml  # noqa: PLC0415

    try:
        return function(handle)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def _cpus(num_ranks: int, torch_threads: int) -> tuple[RankDevice, ...]:
    return (RankDevice(device="cpu", name="cpu", torch_threads=torch_threads, backend="gloo"),) * num_ranks


def _gpus(devices: list[_Visible]) -> tuple[RankDevice, ...]:
    # NCCL refuses two ranks on one physical GPU. Other launchers may show each rank its own MIG instance only, so that no
    # rank knows whether two share a GPU, and all ranks must choose the same backend.
    on_mig = any(device.token.startswith(MIG) for device in devices)
    return tuple(
        RankDevice(
            device="cuda:0",
            visible=device.token,
            gpu_id=device.gpu.index if device.gpu else None,
            name=_name(device),
            torch_threads=max(1, cores() // len(devices)),
            backend="gloo" if on_mig else "nccl",
        )
        for device in devices
    )


def _by_index(devices: list[_Visible], hosts: Sequence[str], environ: Mapping[str, str]) -> list[_Visible]:
    """Name devices by index: every machine takes the same names, and UUIDs differ between machines.

    Raises:
        UserError: If one has no index, the user gave its UUID, or CUDA's indices are not NVML's.
    """
    flag = f"--hosts {' '.join(hosts)}"
    listed = environ.get("CUDA_VISIBLE_DEVICES", "")
    if any(entry.strip().startswith(("GPU-", MIG)) for entry in listed.split(",")):
        raise UserError(f"{flag}: CUDA_VISIBLE_DEVICES={listed} names devices of this machine only; give indices")
    if any(device.token.startswith(MIG) for device in devices):
        raise UserError(f"{flag}: MIG instances have no index that all machines share; train on one machine")
    if not is_numbered_by_bus(environ) and any(device.gpu for device in devices):
        raise UserError(f"{flag}: {ORDER}={environ[ORDER]} numbers GPUs unlike nvidia-smi; unset it")
    return [device._replace(token=str(device.gpu.card)) if device.gpu else device for device in devices]


def _visible(environ: Mapping[str, str], gpus: list[Gpu]) -> list[_Visible]:
    """Return what CUDA_VISIBLE_DEVICES lists, as CUDA reads it: up to the first entry that names no device.

    CUDA shows no device at all where one is listed twice.
    """
    if not gpus:
        return []
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return [_as_visible(gpu) for gpu in gpus]
    found: list[_Visible] = []
    for entry in map(str.strip, environ["CUDA_VISIBLE_DEVICES"].split(",")):
        device = _find(entry, gpus, by_bus=is_numbered_by_bus(environ))
        if device is None:
            break
        if device in found:
            return []
        found.append(device)
    return found


def _find(entry: str, gpus: list[Gpu], *, by_bus: bool) -> _Visible | None:
    """Return the device that an entry of CUDA_VISIBLE_DEVICES names by its index or the beginning of its UUID.

    For a GPU in MIG mode, this is its first instance. An index is CUDA's; if the user chose another order than by bus, it is
    left to CUDA.
    """
    if entry.isdecimal():
        cards = {gpu.card for gpu in gpus}
        if not by_bus and int(entry) in cards and len(cards) > 1:
            return _Visible(entry, None)
        return next((_as_visible(gpu) for gpu in gpus if gpu.card == int(entry)), None)
    if entry.startswith("GPU-"):
        cards = {gpu.card: gpu for gpu in reversed(gpus) if gpu.card_uuid.startswith(entry)}
        return _as_visible(*cards.values()) if len(cards) == 1 else None
    if entry.startswith(MIG):
        if not any(gpu.is_mig for gpu in gpus):
            return _Visible(entry, None)  # the driver does not list instances, and CUDA may know it
        instances = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return _as_visible(*instances) if len(instances) == 1 else None
    return None


def _as_visible(gpu: Gpu) -> _Visible:
    return _Visible(gpu.uuid or str(gpu.card), gpu)


def _usable(devices: list[_Visible], *, first_only: bool) -> list[_Visible]:
    """Return the devices that can be used, or the first of them; warn of those that are left out."""
    found: list[_Visible] = []
    for device in devices:
        if fault := _fault(device):
            logger.warning("%s: left out.", fault)
        else:
            found.append(device)
            if first_only:
                break
    return found


def _fault(device: _Visible) -> str:
    """Return in words why a device cannot be used; empty if it can."""
    gpu = device.gpu
    return f"GPU {gpu.index} cannot be used ({gpu.fault})" if gpu and gpu.fault else ""


def _checked_indices(chosen: tuple[int, ...], environ: Mapping[str, str], visible: list[_Visible]) -> tuple[int, ...]:
    shown = _shown(chosen)
    if not chosen:
        raise UserError("--gpu-ids: names no GPU; give indices such as 0 1, or all, or None for the CPU")
    for i in chosen:
        if i < 0:
            raise UserError(f"--gpu-ids {shown}: {i} is negative; indices start at 0")
        if i >= len(visible):
            mend = f"use indices up to {len(visible) - 1}" if visible else CPU_MEND
            raise UserError(f"--gpu-ids {shown}: there is no GPU {i}, {_seen(environ, visible)}; {mend}")
    repeated = [i for i in dict.fromkeys(chosen) if chosen.count(i) > 1]
    if repeated:
        raise UserError(f"--gpu-ids {shown}: GPU {repeated[0]} is repeated; name each once")
    for i in chosen:
        if fault := _fault(visible[i]):
            raise UserError(f"--gpu-ids {shown}: {fault}; {OTHER_GPUS}")
    return chosen


def _seen(environ: Mapping[str, str], visible: list[_Visible]) -> str:
    where = (
        f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}"
        if "CUDA_VISIBLE_DEVICES" in environ
        else "this machine"
    )
    return f"{where} shows {len(visible) or 'no'} GPU{'' if len(visible) == 1 else 's' if visible else ''}"


def _shown(chosen: tuple[int, ...] | str | None) -> str:
    return " ".join(map(str, chosen)) if isinstance(chosen, tuple) else str(chosen)


def _name(device: _Visible) -> str:
    return f"{device.gpu.name} (GPU {device.gpu.index})" if device.gpu else f"CUDA device {device.token}"
