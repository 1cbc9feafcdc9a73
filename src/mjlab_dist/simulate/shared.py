"""Tensors in memory that this process and its ranks share.

The memory is a file without a name (memfd). It is freed when the last process that uses it has ended, and limits of
/dev/shm do not apply to it. The launcher sends the file's descriptor to the ranks through Unix sockets.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from mjlab_dist.messages import emit
from mjlab_dist.simulate.job import Layout, Tensors

# Arrays by name
Arrays = dict[str, np.ndarray]

# Bytes to which the start of each tensor is aligned, the size of a cache line
ALIGNMENT = 64


class Block(NamedTuple):
    """Shared memory with tensors."""

    # File descriptor of the memory; it may be closed while the tensors are still used
    descriptor: int
    layout: Layout
    # The tensors, which keep the memory alive
    tensors: Tensors


def create(layout: Layout) -> Block:
    """Return new shared memory with tensors that are 0."""
    descriptor = os.memfd_create("mjlab_dist", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(1, num_bytes(layout)))
    return Block(descriptor, layout, attach(descriptor, layout))


def attach(descriptor: int, layout: Layout) -> Tensors:
    """Return the tensors in shared memory; they keep the memory alive."""
    return place(mmap.mmap(descriptor, 0), layout)


def num_bytes(layout: Layout) -> int:
    """Return the size of the memory that tensors need."""
    return sum(_padded(entry.num_bytes) for entry in layout.values())


def place(memory: mmap.mmap | memoryview, layout: Layout) -> Tensors:
    """Return tensors that are stored in the given memory; they keep the memory alive."""
    tensors, start = {}, 0
    for name, entry in layout.items():
        dtype: torch.dtype = getattr(torch, entry.dtype)
        count = math.prod(entry.shape)
        tensors[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(entry.shape)
        start += _padded(entry.num_bytes)
    return tensors


@contextlib.contextmanager
def pinned(tensors: Tensors, device: str) -> Iterator[None]:
    """Pin the memory of tensors inside the context, so that a GPU copies to and from it while the host continues.

    If the driver refuses, copies are correct but slower.
    """
    if device == "cpu":
        yield
        return
    runtime: Any = torch.cuda.cudart()
    start = min(tensor.data_ptr() for tensor in tensors.values())
    end = max(tensor.data_ptr() + tensor.nbytes for tensor in tensors.values())
    if error := int(runtime.cudaHostRegister(start, end - start, 0)):
        emit("debug", text=f"the memory of actions and results cannot be pinned: CUDA error {error}")
        # CUDA stores the error, and torch raises it in its next operation. Run an operation, and ignore the error.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device).add_(1)
    try:
        yield
    finally:
        if not error:
            runtime.cudaHostUnregister(start)


def copy_into(target: Tensors, source: Tensors, device: str) -> None:
    """Copy tensors by name, with only one wait for the device."""
    for name, tensor in source.items():
        target[name].copy_(tensor, non_blocking=True)
    if device != "cpu":
        torch.cuda.current_stream(device).synchronize()


def as_arrays(tensors: Tensors) -> Arrays:
    """Return tensors as NumPy arrays. Unlike torch's tensors, arrays can be pickled without shared memory."""
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Arrays) -> Tensors:
    """Convert the result of :func:`as_arrays` back to tensors, on the CPU."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
