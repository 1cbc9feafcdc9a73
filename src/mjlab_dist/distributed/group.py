"""The process group of all ranks; with a single rank there is none, and every collective returns at once."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from mjlab_dist.distributed.local_sum import LocalSum
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.errors import UserError

TIMEOUT_S = 600
"""Seconds that a rank waits in a collective before it gives up."""

START_TIMEOUT_S = 7200
"""Seconds that a rank waits for the others before they train: one of them may be compiling kernels. A rank that fails ends the
launch at once; this is for launchers that do not end the others, such as srun without --kill-on-bad-exit."""

T = TypeVar("T")

_local_sum: contextvars.ContextVar[LocalSum | None] = contextvars.ContextVar("local_sum", default=None)
"""Set while a process group is joined whose ranks add up without it; as torch has one group per process, so has this."""


def meet(rank: Rank) -> Store | None:
    """Meet the other ranks at a key-value store, before there is a process group; return None on the only rank.

    Connecting gives up after :data:`TIMEOUT_S`, waiting for a key after :data:`START_TIMEOUT_S`.
    """
    if rank.world_size == 1:
        return None
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    if rank.joins_store:
        store: Store = TCPStore(rank.master_address, rank.master_port, is_master=False, timeout=timeout)
    else:
        url = f"tcp://{rank.master_address}:{rank.master_port}"
        # Under torchrun this finds the store of its agent, on whose port rank 0 could open none.
        store, _, _ = next(rendezvous(url, rank.rank, rank.world_size, timeout=timeout))
    store.set_timeout(datetime.timedelta(seconds=START_TIMEOUT_S))
    return store


@contextlib.contextmanager
def process_group(rank: Rank, device: str, backend: str, store: Store | None) -> Iterator[None]:
    """Join the other ranks, and leave the group together when the context ends without an error.

    After an error a group with NCCL stays: NCCL's destroy and abort wait for the other ranks of the machine, which may be waiting
    for this one in a collective. Report the error, then end the process without the interpreter's shutdown.

    Args:
        rank: Which rank this is.
        device: The rank's device, ``cpu`` or ``cuda:<index>``.
        backend: ``gloo``, or ``nccl`` for what is on GPUs and gloo for what is on the CPU.
        store: What :func:`meet` returned.

    Raises:
        UserError: If the group of an earlier run is left, which failed with NCCL.
    """
    if rank.world_size == 1:
        yield
        return
    assert store is not None
    if dist.is_initialized():
        raise UserError(
            "a run with NCCL has failed in this process; start another process, in which NCCL can start again"
        )
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    store.set_timeout(timeout)  # from here on nobody compiles
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else backend,
        store=store,
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=timeout,
        device_id=torch.device(device) if backend == "nccl" else None,
    )
    try:
        with _local_sums(rank, device, store):
            yield
        dist.barrier()  # nobody leaves while another still waits for what it was sent
    except BaseException:
        if backend == "gloo":
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextlib.contextmanager
def _local_sums(rank: Rank, device: str, store: Store | None) -> Iterator[None]:
    """Have CPU ranks of one machine add up through sockets of their own (docs/decisions/0013)."""
    if device != "cpu" or not rank.on_one_machine or store is None:
        yield
        return
    local_sum = LocalSum(store, rank.rank, rank.world_size, TIMEOUT_S)
    before = _local_sum.set(local_sum)
    try:
        yield
    finally:
        _local_sum.reset(before)
        local_sum.close()


def world_size() -> int:
    """Number of ranks that have joined."""
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
    """Every rank's tensor, on rank 0; an empty list on the others.

    Args:
        values: Of the same shape and type on every rank, on the CPU.
    """
    if not dist.is_initialized():
        return [values]
    table = [torch.empty_like(values) for _ in range(world_size())] if dist.get_rank() == 0 else None
    dist.gather(values, table, dst=0)
    return table or []


def gather(values: torch.Tensor) -> torch.Tensor:
    """Every rank's tensor, on every rank.

    Args:
        values: (n,), the same n on every rank.

    Returns:
        (world size, n), in the order of ranks.
    """
    if not dist.is_initialized():
        return values.unsqueeze(0)
    table = values.new_empty(world_size() * len(values))
    dist.all_gather_into_tensor(table, values)
    return table.view(-1, len(values))


def broadcast_from_main(value: T) -> T:
    """Give every rank the object that rank 0 passes; of the others' it is ignored."""
    if not dist.is_initialized():
        return value
    box: list[T] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
