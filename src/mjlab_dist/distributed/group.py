"""The process group of all ranks; with a single rank there is none, and every collective returns at once."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from mjlab_dist.distributed.rank import Rank

TIMEOUT_S = 600
"""Seconds that a rank waits in a collective before it gives up."""

T = TypeVar("T")


@contextlib.contextmanager
def process_group(rank: Rank, device: str, backend: str) -> Iterator[None]:
    """Join the other ranks. To be entered after graphs are captured: NCCL's watchdog thread can break a capture.

    Args:
        rank: Which rank this is.
        device: The rank's device, ``cpu`` or ``cuda:<index>``.
        backend: ``gloo`` or ``nccl``.
    """
    if rank.world_size == 1:
        yield
        return
    dist.init_process_group(
        backend,
        init_method=f"tcp://{rank.master_address}:{rank.master_port}",
        rank=rank.rank,
        world_size=rank.world_size,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
        device_id=torch.device(device) if backend == "nccl" else None,
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over all ranks, in place, and return it."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def broadcast_from_main(value: T) -> T:
    """Give every rank the object that rank 0 passes; of the others' it is ignored."""
    if not dist.is_initialized():
        return value
    box: list[T] = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
