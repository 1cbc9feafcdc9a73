"""Which devices the ranks of this machine take, as NVIDIA's management library (NVML) lists them. Imports no torch."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import DevicePlan, Rank, outside_launcher
from mjlab_dist.errors import UserError

logger = logging.getLogger(__name__)

CPU_MEND = "use --gpu-ids None to train on the CPU"

OTHER_GPUS = "see nvidia-smi, or choose other GPUs"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver knows it."""

    index: int
    """Physical index, by PCI bus."""
    uuid: str
    """Its UUID, ``GPU-...``."""
    name: str
    """Its model."""
    fault: str = ""
    """Why it cannot be used, such as ``GPU is lost``; empty if it can."""


def find_gpus() -> list[Gpu]:
    """Return the machine's GPUs, whatever CUDA_VISIBLE_DEVICES lists; none without a driver that works.

    A GPU that cannot be used keeps its place, so that the indices of the others do not shift.
    """
    import pynvml  # noqa: PLC0415 (needless where help is printed)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_query_gpu(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def plan_devices(config: TrainConfig, environ: Mapping[str, str], gpus: list[Gpu]) -> DevicePlan:
    """Choose a device for every rank that this process is going to start.

    Args:
        config: The run's config.
        environ: The environment, for CUDA_VISIBLE_DEVICES.
        gpus: The machine's GPUs.

    Raises:
        UserError: If the chosen GPUs are not there, cannot be used, are repeated, or are mixed with CPU ranks.
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
    tokens = _visible_tokens(environ, gpus)
    if isinstance(chosen, tuple):
        return _gpus([tokens[i] for i in _checked_indices(chosen, environ, tokens, gpus)], gpus)
    usable = _usable(tokens, gpus)
    if chosen == "all" and not usable:
        raise UserError(f"--gpu-ids all: {_seen(environ, usable)}; {CPU_MEND}")
    if usable:
        return _gpus(usable if chosen == "all" else usable[:1], gpus)
    if environ.get("CUDA_VISIBLE_DEVICES") != "":
        logger.warning("No GPU found: training on the CPU (--gpu-ids None says so without this warning).")
    return _cpus(1, cores())


def plan_own_device(config: TrainConfig, rank: Rank, environ: Mapping[str, str], gpus: list[Gpu]) -> DevicePlan:
    """Choose the device of one rank that another launcher (torchrun, SLURM) started.

    Args:
        config: The run's config; of its ``gpu_ids`` only None matters, which means the CPU.
        rank: Which rank this is.
        environ: The environment, for CUDA_VISIBLE_DEVICES.
        gpus: The machine's GPUs.

    Returns:
        A plan whose every local rank up to this one has an entry.

    Raises:
        UserError: If there are fewer GPUs than ranks here, or this rank's cannot be used.
    """
    tokens = [] if config.gpu_ids is None or config.cpu_ranks is not None else _visible_tokens(environ, gpus)
    here = rank.local_rank + 1
    if not tokens:
        # torchrun sets OMP_NUM_THREADS; SLURM binds each task to its own cores.
        return _cpus(here, int(environ.get("OMP_NUM_THREADS") or cores()))
    if len(tokens) == 1 and outside_launcher(environ) == "slurm":
        # SLURM can show each task its own GPU only.
        own = _gpus(tokens, gpus)
        return dataclasses.replace(
            own, devices=own.devices * here, egl_ids=own.egl_ids * here, names=own.names * here, visible=None
        )
    if rank.local_rank >= len(tokens):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {_seen(environ, tokens)}; start one process per GPU")
    if fault := _fault(tokens[rank.local_rank], gpus):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {fault}; {OTHER_GPUS}, by CUDA_VISIBLE_DEVICES")
    return dataclasses.replace(_gpus(tokens, gpus), visible=None)


def in_this_process(plan: DevicePlan, environ: Mapping[str, str], gpus: list[Gpu]) -> DevicePlan:
    """The same devices, by their index among all that are visible, for a rank that no process is started for.

    CUDA reads CUDA_VISIBLE_DEVICES once a process, which may have been before, or may be for another run still to come.

    Args:
        plan: A plan of :func:`plan_devices`.
        environ: The environment that it was made from.
        gpus: The machine's GPUs.
    """
    if plan.visible is None:
        return plan
    tokens = _visible_tokens(environ, gpus)
    devices = tuple(f"cuda:{tokens.index(token)}" for token in plan.visible.split(","))
    return dataclasses.replace(plan, devices=devices, visible=None)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _query_gpu(index: int) -> Gpu:
    import pynvml  # noqa: PLC0415

    uuid, name = "", "GPU"
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = _query(pynvml.nvmlDeviceGetUUID, handle) or uuid
        name = _query(pynvml.nvmlDeviceGetName, handle) or name
    except pynvml.NVMLError as error:
        return Gpu(index=index, uuid=uuid, name=name, fault=str(error))
    return Gpu(index=index, uuid=uuid, name=name)


def _query(function: Callable[[Any], Any], handle: Any) -> Any:
    """Return what an NVML function answers; None if the GPU or the driver has no such function."""
    import pynvml  # noqa: PLC0415

    try:
        return function(handle)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise


def _cpus(num_ranks: int, torch_threads: int) -> DevicePlan:
    return DevicePlan(
        devices=("cpu",) * num_ranks,
        egl_ids=(None,) * num_ranks,
        names=("cpu",) * num_ranks,
        torch_threads=torch_threads,
        backend="gloo",
    )


def _gpus(tokens: list[str], gpus: list[Gpu]) -> DevicePlan:
    return DevicePlan(
        devices=tuple(f"cuda:{i}" for i in range(len(tokens))),
        visible=",".join(tokens),
        egl_ids=tuple(_physical_index(token, gpus) for token in tokens),
        names=tuple(_name(token, gpus) for token in tokens),
        torch_threads=max(1, cores() // len(tokens)),
        backend="nccl",
    )


def _visible_tokens(environ: Mapping[str, str], gpus: list[Gpu]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES lists, as CUDA reads it: up to the first entry that names no device."""
    if not gpus:
        return []
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return [str(gpu.index) for gpu in gpus]
    tokens: list[str] = []
    for token in map(str.strip, environ["CUDA_VISIBLE_DEVICES"].split(",")):
        # CUDA takes the beginning of a UUID. Which MIG slices there are, the list of GPUs does not tell.
        known = token.startswith("MIG-") or _find(token, gpus) is not None
        if not known:
            break
        tokens.append(token)
    return tokens


def _usable(tokens: list[str], gpus: list[Gpu]) -> list[str]:
    """Return the tokens whose GPUs can be used; warn of the others."""
    for token in tokens:
        if fault := _fault(token, gpus):
            logger.warning("%s: left out.", fault)
    return [token for token in tokens if not _fault(token, gpus)]


def _checked_indices(
    chosen: tuple[int, ...], environ: Mapping[str, str], tokens: list[str], gpus: list[Gpu]
) -> tuple[int, ...]:
    shown = _shown(chosen)
    if not chosen:
        raise UserError("--gpu-ids: names no GPU; give indices such as 0 1, or all, or None for the CPU")
    for i in chosen:
        if i < 0:
            raise UserError(f"--gpu-ids {shown}: {i} is negative; indices start at 0")
        if i >= len(tokens):
            mend = f"use indices up to {len(tokens) - 1}" if tokens else CPU_MEND
            raise UserError(f"--gpu-ids {shown}: there is no GPU {i}, {_seen(environ, tokens)}; {mend}")
    repeated = [i for i in dict.fromkeys(chosen) if chosen.count(i) > 1]
    if repeated:
        raise UserError(f"--gpu-ids {shown}: GPU {repeated[0]} is repeated; name each once")
    for i in chosen:
        if fault := _fault(tokens[i], gpus):
            raise UserError(f"--gpu-ids {shown}: {fault}; {OTHER_GPUS}")
    return chosen


def _seen(environ: Mapping[str, str], tokens: list[str]) -> str:
    where = (
        f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']}"
        if "CUDA_VISIBLE_DEVICES" in environ
        else "this machine"
    )
    return f"{where} shows {len(tokens) or 'no'} GPU{'' if len(tokens) == 1 else 's' if tokens else ''}"


def _shown(chosen: tuple[int, ...] | str | None) -> str:
    return " ".join(map(str, chosen)) if isinstance(chosen, tuple) else str(chosen)


def _find(token: str, gpus: list[Gpu]) -> Gpu | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names, by its index or the beginning of its UUID."""
    if token.isdecimal():
        return gpus[int(token)] if int(token) < len(gpus) else None
    return next((gpu for gpu in gpus if token.startswith("GPU-") and gpu.uuid.startswith(token)), None)


def _fault(token: str, gpus: list[Gpu]) -> str:
    """Return in words why the GPU of a token cannot be used; empty if it can."""
    gpu = _find(token, gpus)
    return f"GPU {gpu.index} cannot be used ({gpu.fault})" if gpu and gpu.fault else ""


def _physical_index(token: str, gpus: list[Gpu]) -> str | None:
    # Which GPU a MIG slice belongs to, its UUID does not tell.
    gpu = _find(token, gpus)
    return str(gpu.index) if gpu else None


def _name(token: str, gpus: list[Gpu]) -> str:
    gpu = _find(token, gpus)
    return f"{gpu.name} ({token})" if gpu else token
