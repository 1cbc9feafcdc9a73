"""Which devices the ranks of this machine take. Imports no torch: NVIDIA's management library is asked."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import DevicePlan, Rank, outside_launcher
from mjlab_dist.errors import UserError

logger = logging.getLogger(__name__)

CPU_MEND = "use --gpu-ids None to train on the CPU"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU as the driver knows it."""

    index: int
    """Physical index, by PCI bus."""
    uuid: str
    """Its UUID, ``GPU-...``."""
    name: str
    """Its model."""


def find_gpus() -> list[Gpu]:
    """The machine's GPUs, whatever CUDA_VISIBLE_DEVICES says; none without a driver."""
    import pynvml  # noqa: PLC0415 (needless where help is printed)

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            Gpu(index=i, uuid=str(pynvml.nvmlDeviceGetUUID(handle)), name=str(pynvml.nvmlDeviceGetName(handle)))
            for i, handle in enumerate(handles)
        ]
    finally:
        pynvml.nvmlShutdown()


def plan_devices(config: TrainConfig, environ: Mapping[str, str], gpus: list[Gpu]) -> DevicePlan:
    """Choose a device for every rank that this process is going to start.

    Args:
        config: The run's config.
        environ: The environment, for CUDA_VISIBLE_DEVICES.
        gpus: The machine's GPUs.

    Raises:
        UserError: If the chosen GPUs are not there, repeated, or mixed with CPU ranks.
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
    if chosen == "auto":
        if tokens:
            return _gpus(tokens[:1], gpus)
        if environ.get("CUDA_VISIBLE_DEVICES") != "":
            logger.warning("No GPU found: training on the CPU (--gpu-ids None says so without this warning).")
        return _cpus(1, cores())
    if chosen == "all":
        if not tokens:
            raise UserError(f"--gpu-ids all: {_seen(environ, tokens)}; {CPU_MEND}")
        return _gpus(tokens, gpus)
    return _gpus([tokens[i] for i in _checked_indices(chosen, environ, tokens)], gpus)


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
        UserError: If there are fewer GPUs than ranks here.
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
        known = (
            token.startswith("MIG-")
            or (token.startswith("GPU-") and any(gpu.uuid.startswith(token) for gpu in gpus))
            or (token.isdecimal() and int(token) < len(gpus))
        )
        if not known:
            break
        tokens.append(token)
    return tokens


def _checked_indices(chosen: tuple[int, ...], environ: Mapping[str, str], tokens: list[str]) -> tuple[int, ...]:
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


def _physical_index(token: str, gpus: list[Gpu]) -> str | None:
    if token.isdecimal():
        return token
    # Which GPU a MIG slice belongs to, its UUID does not tell.
    return next((str(gpu.index) for gpu in gpus if gpu.uuid.startswith(token)), None)


def _name(token: str, gpus: list[Gpu]) -> str:
    index = _physical_index(token, gpus)
    return f"{gpus[int(index)].name} ({token})" if index is not None else token
