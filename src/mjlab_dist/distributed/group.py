"""The process group of all ranks, and collectives: exchanges of data in which every rank takes part.

With a single rank, there is no group, and collectives return without communication.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import datetime
import sys
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from mjlab_dist.distributed.local_sum import LocalSum
from mjlab_dist.distributed.rank import Rank, in_words
from mjlab_dist.errors import DesyncError, UserError

# Timeout of collectives, in seconds
TIMEOUT_S = 600

# Timeout for other ranks to start, in seconds; long, because one of them may be compiling kernels.
#
# If a rank fails, most launchers end the other ranks. Some launchers do not, such as srun without
# `--kill-on-bad-exit`. In that case, the other ranks end after this timeout.
START_TIMEOUT_S = 7200

# Object that sums tensors over ranks while CPU ranks of one machine train; None otherwise
_local_sum: contextvars.ContextVar[LocalSum | None] = contextvars.ContextVar("local_sum", default=None)


def meet(rank: Rank) -> Store | None:
    """Return a key-value store that all ranks connect to before there is a process group; None for a single rank.

    The timeout is :data:`TIMEOUT_S` for connecting, and :data:`START_TIMEOUT_S` for waiting for a key.
    """
    if rank.world_size == 1:
        return None
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    if rank.store_file:
        store: Store = FileStore(rank.store_file, rank.world_size)
    elif rank.joins_store:
        store = TCPStore(rank.master_address, rank.master_port, is_master=False, timeout=timeout)
    else:
        url = f"tcp://{rank.master_address}:{rank.master_port}"
        # Under torchrun, this call connects to the agent's store, which already listens on the port.
        store, _, _ = next(rendezvous(url, rank.rank, rank.world_size, timeout=timeout))
    store.set_timeout(datetime.timedelta(seconds=START_TIMEOUT_S))
    return store


@contextlib.contextmanager
def process_group(rank: Rank, device: str, backend: str, store: Store | None) -> Iterator[None]:
    """Join the process group, and leave it together with the other ranks if the context ends without an error.

    After an error, an NCCL group is not destroyed: NCCL's destroy and abort wait for the other ranks of the machine,
    which may be waiting for this rank in a collective. The caller must report the error, and then end the process with
    ``os._exit``, because the interpreter's shutdown waits for NCCL too.
    """
    if rank.world_size == 1:
        yield
        return
    assert store is not None
    if dist.is_initialized():
        raise UserError(
            "an earlier run with NCCL failed in this process, and NCCL cannot start again in it; start a new process"
        )
    # Join
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    store.set_timeout(timeout)  # shorter than before, because all ranks have compiled their kernels
    excepthook = sys.excepthook
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
        device_id=torch.device(device) if backend == "nccl" else None,
    )
    sys.excepthook = excepthook  # torch's own hook would prefix later tracebacks of the caller with [rank0]:
    # Train, then leave
    try:
        with contextlib.ExitStack() as stack:
            # CPU ranks of one machine sum over ranks through sockets instead of gloo (docs/decisions/0013)
            if device == "cpu" and rank.on_one_machine:
                local_sum = LocalSum(store, rank.rank, rank.world_size, TIMEOUT_S)
                stack.callback(local_sum.close)
                stack.callback(_local_sum.reset, _local_sum.set(local_sum))
            yield
        dist.barrier()  # wait until all ranks have received what others sent them
    except BaseException:
        if backend == "gloo":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def wait_for_all(store: Store | None, rank: Rank, key: str) -> None:
    """Wait until every rank has called this function. Use each key only once: with a known one, ranks do not wait.

    The timeout is :data:`START_TIMEOUT_S`, because ranks may be compiling kernels.
    """
    if store is None:
        return
    if store.add(f"{key}/arrived", 1) == rank.world_size:
        store.set(f"{key}/all", "")
    store.wait([f"{key}/all"], datetime.timedelta(seconds=START_TIMEOUT_S))


def world_size() -> int:
    """Return the number of ranks in the process group; 1 if there is no group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place, and return it."""
    local_sum = _local_sum.get()
    if local_sum is not None:
        local_sum.sum_(values)
    elif dist.is_initialized():
        dist.all_reduce(values)
    return values


def gather_on_main(values: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks, in order of rank, on rank 0; return an empty list on other ranks.

    Args:
        values: CPU tensor of the same shape and dtype on every rank.
    """
    if not dist.is_initialized():
        return [values]
    table = [torch.empty_like(values) for _ in range(world_size())] if dist.get_rank() == 0 else None
    dist.gather(values, table, dst=0)
    return table or []


def gather(values: torch.Tensor) -> torch.Tensor:
    """Return the tensors of all ranks as one table, which is the same on every rank.

    Args:
        values: (n,), with the same n on every rank.

    Returns:
        (world size, n), in order of rank.
    """
    if not dist.is_initialized():
        return values.unsqueeze(0)
    table = values.new_empty(world_size() * len(values))
    dist.all_gather_into_tensor(table, values)
    return table.view(-1, len(values))


def broadcast_from_main(data: bytes | None) -> bytes | None:
    """Return rank 0's bytes on every rank; the arguments of the other ranks are ignored.

    The function sends bytes, because PyTorch sends other objects as pickles. A pickle can run code on the receiver,
    and gloo accepts connections from anyone.
    """
    if not dist.is_initialized():
        return data
    # Length; -1 for None
    assert data != b""
    length = torch.tensor([-1 if data is None else len(data)])
    dist.broadcast(length, src=0)
    size = int(length)
    if size < 0:
        return None
    # Bytes
    values = torch.empty(size, dtype=torch.uint8)
    if data is not None and dist.get_rank() == 0:
        values.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(values, src=0)
    return values.numpy().tobytes()


def overwrite_by_main(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None = None) -> None:
    """Overwrite tensors with the tensors of the first rank of a group, in one message.

    Args:
        tensors: Tensors of any dtypes on one device; the same dtypes and shapes on every rank.
    """
    if not tensors or not dist.is_initialized():
        return
    parts = [t.contiguous().view(-1).view(torch.uint8) for t in tensors]
    packed = torch.cat(parts)
    dist.broadcast(packed, group_src=0, group=group)
    for tensor, part in zip(tensors, packed.split([len(p) for p in parts]), strict=True):
        # A part of the message may not be aligned for the dtype; a clone is always aligned.
        tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))


def check_equal(tensors: Mapping[str, torch.Tensor], when: str) -> None:
    """Compare tensors over all ranks by their checksums.

    Raises:
        DesyncError: If a tensor is not equal on all ranks. Every rank raises this error. The message names the first
            tensor that differs, and the ranks on which it differs.
    """
    table = gather(torch.stack([checksum(t) for t in tensors.values()])).tolist()
    names = list(tensors)
    for name, *column in zip(names, *table, strict=True):
        groups = _groups(column)
        if len(groups) > 1:
            # The ranks that differ from the majority; all ranks if there is no majority
            others = sorted(rank for group in groups[1:] for rank in group)
            who = f"{in_words(others)} differ{'s' if len(others) == 1 else ''} from the others"
            if len(groups[0]) <= len(others):
                who = f"{in_words(sorted(groups[0] + others))} differ"
            differing = sum(len(set(c)) > 1 for c in zip(*table, strict=True))
            more = f", the first of {differing} tensors that differ" if differing > 1 else ""
            raise DesyncError(
                f"{when}: {who} in {name}{more}; the run ends, because all ranks must hold equal parameters. "
                "Resume from the last checkpoint; it is valid, because the parameters were equal when it was written"
            )


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return a scalar int64 that always changes if one element changes, and almost always changes if several change.

    The bits of each element are multiplied by an odd number that depends on its position, and summed modulo 2^64. If
    one element changes, the sum always changes, because an odd number times a nonzero difference is never 0 modulo
    2^64.
    """
    flat = tensor.detach().contiguous().view(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]).long()
    positions = torch.arange(len(bits), device=bits.device)
    return (bits * (positions * 0x5851F42D4C957F2E + 0x14057B7EF767814F)).sum()


def _groups(column: list[int]) -> list[list[int]]:
    """Group ranks with equal values, the largest group first."""
    ranks = collections.defaultdict(list)
    for rank, value in enumerate(column):
        ranks[value].append(rank)
    return sorted(ranks.values(), key=len, reverse=True)
