"""Choose the devices of this machine's ranks. NVIDIA's management library (NVML) lists the GPUs. Imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import Rank, RankDevice, outside_launcher
from mjlab_dist.distributed.rank import is_numbered_by_bus
from mjlab_dist.errors import UserError, counted
from mjlab_dist.machine.control_groups import cores

if TYPE_CHECKING:
    from mjlab_dist.launch.hosts.device_answer import DeviceRequest

logger = logging.getLogger(__name__)

CPU_FIX = "use --gpu-ids None to train on the CPU"

OTHER_GPUS = "see nvidia-smi, or choose other GPUs"

# Maximum number of CPU ranks per core without --oversubscribe. It allows tests with a few ranks on small machines. A
# larger number is probably a mistake, and ranks would wait so long for each other that they seem to hang.
MAX_RANKS_PER_CORE = 4

# Prefix of the UUIDs of MIG instances
MIG = "MIG-"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, or one MIG instance of a GPU."""

    # Index for --gpu-ids if CUDA_VISIBLE_DEVICES is unset. MIG instances have indices; the GPU that contains them has
    # none.
    index: int
    # NVML's index of the physical GPU: its position by PCI bus, as nvidia-smi prints it
    card: int
    # UUID, GPU-... or MIG-...; empty if the driver has none.
    uuid: str
    # UUID of the physical GPU
    card_uuid: str
    # Model name
    name: str
    # Reason why the GPU cannot be used, such as GPU is lost; empty if the GPU can be used
    fault: str = ""

    @property
    def is_mig(self) -> bool:
        """Whether this is a MIG instance."""
        return self.uuid.startswith(MIG)


class _Visible(NamedTuple):
    """A device that CUDA_VISIBLE_DEVICES lists."""

    # Value of CUDA_VISIBLE_DEVICES that shows a process only this device: a UUID if possible
    token: str
    # The device; None if only CUDA can resolve the token
    gpu: Gpu | None


def find_gpus() -> list[Gpu]:
    """Return the machine's GPUs and MIG instances regardless of CUDA_VISIBLE_DEVICES; an empty list without a driver.

    A GPU that cannot be used stays in the list, so that the indices of the others do not shift.
    """
    import pynvml  # not needed to print help

    with contextlib.suppress(pynvml.NVMLError), nvml():
        found = [gpu for card in range(pynvml.nvmlDeviceGetCount()) for gpu in _query_card(card)]
        return [dataclasses.replace(gpu, index=i) for i, gpu in enumerate(found)]
    return []


@contextlib.contextmanager
def nvml() -> Iterator[None]:
    """Use NVML inside the context."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def plan_devices(
    flags: TrainConfig | DeviceRequest, environ: Mapping[str, str], gpus: list[Gpu], num_ranks: int | None = None
) -> tuple[RankDevice, ...]:
    """Choose a device for every rank of this machine."""
    # CPU ranks
    chosen = flags.gpu_ids
    if flags.cpu_ranks is not None and chosen not in (None, "auto"):
        raise UserError(
            f"--cpu-ranks {flags.cpu_ranks}: cannot be combined with --gpu-ids {_shown(chosen)}; remove one of them"
        )
    if flags.cpu_ranks is not None or chosen is None:
        return shared_cpu(num_ranks or flags.cpu_ranks or 1, oversubscribe=flags.oversubscribe)

    # GPUs by index, all, or the first one that can be used
    visible = _visible(environ, gpus)
    if isinstance(chosen, tuple):
        taken = [visible[i] for i in _checked_indices(chosen, environ, visible)]
    else:
        taken = _usable(visible, first_only=chosen == "auto" and num_ranks is None)
    if chosen == "all" and not taken:
        raise UserError(f"--gpu-ids all: {_seen(environ, taken)}; {CPU_FIX}")
    if taken and num_ranks is not None and num_ranks > len(taken):
        number = counted(len(taken), "GPU")
        raise UserError(
            f"--hosts: {num_ranks} ranks on a machine need {num_ranks} GPUs, but --gpu-ids {_shown(chosen)} chooses "
            f"{number} there; use up to {len(taken)} ranks on that machine"
        )
    if taken:
        return _gpus(taken[:num_ranks])

    # No GPU. If CUDA_VISIBLE_DEVICES is empty, the user has hidden the GPUs on purpose, so there is no warning.
    if environ.get("CUDA_VISIBLE_DEVICES") != "":
        logger.warning("No GPU found: running on the CPU, as with --gpu-ids None.")
    return shared_cpu(num_ranks or 1, oversubscribe=flags.oversubscribe)


def shared_cores(devices: Sequence[RankDevice]) -> list[str]:
    """Return a list with a warning if the ranks of this machine share cores; an empty list otherwise."""
    num_ranks, num_cores = len(devices), cores()
    if num_ranks <= num_cores or devices[0].device != "cpu":
        return []
    return [f"--cpu-ranks {num_ranks}: this machine has {counted(num_cores, 'core')}, which the ranks share"]


def plan_own_device(config: TrainConfig, rank: Rank, environ: Mapping[str, str], gpus: list[Gpu]) -> RankDevice:
    """Choose the device of one rank that another launcher (torchrun, SLURM) started."""
    visible = [] if config.gpu_ids is None or config.cpu_ranks is not None else _visible(environ, gpus)
    if not visible:
        # Number of threads: torchrun sets OMP_NUM_THREADS. SLURM binds each task to some cores; cores() counts these.
        return _cpus(1, int(environ.get("OMP_NUM_THREADS") or cores()))[0]
    if len(visible) == 1 and outside_launcher(environ) == "slurm":
        # SLURM can be configured to show each task only its own GPU. Then this rank uses the only visible GPU.
        return _gpus(visible)[0]
    if rank.local_rank >= len(visible):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {_seen(environ, visible)}; start one process per GPU")
    if fault := _fault(visible[rank.local_rank]):
        raise UserError(f"LOCAL_RANK {rank.local_rank}: {fault}; {OTHER_GPUS} with CUDA_VISIBLE_DEVICES")
    return _gpus(visible)[rank.local_rank]


def in_this_process(device: RankDevice, environ: Mapping[str, str], gpus: list[Gpu]) -> RankDevice | None:
    """Return a rank's device with its CUDA index in this process, in which the rank runs (in a notebook, for example).

    A process that torchrunx starts for a rank gets its own CUDA_VISIBLE_DEVICES. In this process, the variable must not
    change, for two reasons. CUDA reads it only once per process, and may have read it already. A later run in this
    process may also use another device.

    Returns:
        The device, usable without a change of CUDA_VISIBLE_DEVICES; None if this process does not see the device.
    """
    if device.visible is None:
        return device
    token = device.visible
    if token.startswith("GPU-"):
        import torch

        tokens = [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]
    else:
        # CUDA numbers other devices in the order of CUDA_VISIBLE_DEVICES. It shows only one MIG instance per process:
        # if several devices are listed, the instance may not be the one that is shown.
        tokens = [listed.token for listed in _visible(environ, gpus)]
        if token.startswith(MIG) and len(tokens) > 1:
            return None
    return dataclasses.replace(device, device=f"cuda:{tokens.index(token)}", visible=None) if token in tokens else None


def _query_card(card: int) -> list[Gpu]:
    """Return a GPU, or its instances if it is in MIG mode."""
    import pynvml

    uuid, name, fault = "", "GPU", ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(card)
        uuid = _query(pynvml.nvmlDeviceGetUUID, handle) or uuid
        name = _query(pynvml.nvmlDeviceGetName, handle) or name
        mode = _query(pynvml.nvmlDeviceGetMigMode, handle)
        if mode and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
            # Instances that this user may use. NVML raises an error for indices without an instance, and for instances
            # that a container has no access to.
            found: list[Gpu] = []
            for i in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(pynvml.NVMLError):
                    instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
                    own = str(pynvml.nvmlDeviceGetUUID(instance))
                    own_name = _query(pynvml.nvmlDeviceGetName, instance) or f"{name} MIG"
                    found.append(Gpu(index=0, card=card, uuid=own, card_uuid=uuid, name=own_name))
            if found:
                return found
            fault = "it is in MIG mode and has no instance: create one with nvidia-smi mig"
    except pynvml.NVMLError as error:
        fault = str(error)
    return [Gpu(index=0, card=card, uuid=uuid, card_uuid=uuid, name=name, fault=fault)]


def _query(function: Callable[[Any], Any], handle: Any) -> Any:
    """Return the result of an optional NVML function, or None if it fails; raise if the GPU is lost."""
    import pynvml

    try:
        return function(handle)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def shared_cpu(num_ranks: int, *, oversubscribe: bool = False) -> tuple[RankDevice, ...]:
    """Return the devices of ranks that share all cores of this machine."""
    limit = MAX_RANKS_PER_CORE * cores()
    if num_ranks > limit and not oversubscribe:
        raise UserError(
            f"--cpu-ranks {num_ranks}: is more than {MAX_RANKS_PER_CORE} ranks per core, and this machine has "
            f"{counted(cores(), 'core')}; use up to {limit}, or add --oversubscribe"
        )
    return _cpus(num_ranks, max(1, cores() // num_ranks))


def _cpus(num_ranks: int, torch_threads: int) -> tuple[RankDevice, ...]:
    return (RankDevice(device="cpu", name="cpu", torch_threads=torch_threads, backend="gloo"),) * num_ranks


def _gpus(devices: list[_Visible]) -> tuple[RankDevice, ...]:
    # NCCL does not support two ranks on one physical GPU. If another launcher shows each rank only its own MIG
    # instance, a rank cannot detect that it shares a GPU. All ranks therefore use gloo if any device is a MIG instance.
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


def _visible(environ: Mapping[str, str], gpus: list[Gpu]) -> list[_Visible]:
    """Return the devices that CUDA_VISIBLE_DEVICES lists, by CUDA's rules.

    CUDA ignores the first entry that names no device and all entries after it. If a device is listed twice, CUDA shows
    no device.
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

    For a GPU in MIG mode, return its first instance. If the user chose an order other than by PCI bus, only CUDA can
    resolve an index, so the result of an index has no ``gpu``.
    """
    # Index
    if entry.isdecimal():
        cards = {gpu.card for gpu in gpus}
        if not by_bus and int(entry) in cards and len(cards) > 1:
            return _Visible(entry, None)
        return next((_as_visible(gpu) for gpu in gpus if gpu.card == int(entry)), None)
    # UUID of a GPU or of a MIG instance
    if entry.startswith("GPU-"):
        cards = {gpu.card: gpu for gpu in reversed(gpus) if gpu.card_uuid.startswith(entry)}
        return _as_visible(*cards.values()) if len(cards) == 1 else None
    if entry.startswith(MIG):
        if not any(gpu.is_mig for gpu in gpus):
            return _Visible(entry, None)  # NVML lists no instances here, but CUDA may find this one
        instances = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        return _as_visible(*instances) if len(instances) == 1 else None
    return None


def _as_visible(gpu: Gpu) -> _Visible:
    return _Visible(gpu.uuid or str(gpu.card), gpu)


def _usable(devices: list[_Visible], *, first_only: bool) -> list[_Visible]:
    """Return the devices that can be used, or only the first of them. Warn about devices that cannot be used."""
    found: list[_Visible] = []
    for device in devices:
        if fault := _fault(device):
            logger.warning("%s; it is skipped.", fault)
        else:
            found.append(device)
            if first_only:
                break
    return found


def _fault(device: _Visible) -> str:
    """Return the reason why a device cannot be used, for messages; empty if the device can be used."""
    gpu = device.gpu
    return f"GPU {gpu.index} cannot be used ({gpu.fault})" if gpu and gpu.fault else ""


def _checked_indices(chosen: tuple[int, ...], environ: Mapping[str, str], visible: list[_Visible]) -> tuple[int, ...]:
    shown = _shown(chosen)
    if not chosen:
        raise UserError("--gpu-ids: names no GPU; use indices such as 0 1, or all, or None for the CPU")
    for i in chosen:
        if i < 0:
            raise UserError(f"--gpu-ids {shown}: {i} is negative; indices start at 0")
        if i >= len(visible):
            fix = f"use indices up to {len(visible) - 1}" if visible else CPU_FIX
            raise UserError(f"--gpu-ids {shown}: there is no GPU {i}: {_seen(environ, visible)}; {fix}")
    repeated = [i for i in dict.fromkeys(chosen) if chosen.count(i) > 1]
    if repeated:
        raise UserError(f"--gpu-ids {shown}: GPU {repeated[0]} is repeated; name each GPU once")
    for i in chosen:
        if fault := _fault(visible[i]):
            raise UserError(f"--gpu-ids {shown}: {fault}; {OTHER_GPUS}")
    return chosen


def _seen(environ: Mapping[str, str], visible: list[_Visible]) -> str:
    where = (
        f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} shows"
        if "CUDA_VISIBLE_DEVICES" in environ
        else "this machine has"
    )
    return f"{where} {len(visible) or 'no'} GPU{'' if len(visible) == 1 else 's' if visible else ''}"


def _shown(chosen: tuple[int, ...] | str | None) -> str:
    return " ".join(map(str, chosen)) if isinstance(chosen, tuple) else str(chosen)


def _name(device: _Visible) -> str:
    return f"{device.gpu.name} (GPU {device.gpu.index})" if device.gpu else f"CUDA device {device.token}"
