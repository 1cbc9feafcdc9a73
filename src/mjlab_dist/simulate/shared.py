"""Tensors in memory that this process and its ranks share.

The memory is a file without a name (memfd): it is freed when the last process has ended, and no limit of /dev/shm
applies. Descriptors are sent over Unix sockets.
"""

from __future__ import annotations

import math
import mmap
import os

import numpy as np
import torch

from mjlab_dist.simulate.job import Layout, Tensors

Arrays = dict[str, np.ndarray]
"""Arrays by name."""

ALIGNMENT = 64
"""Bytes to which the start of each tensor is aligned, the size of a cache line."""


def create(layout: Layout) -> tuple[int, Tensors]:
    """Return the descriptor of new shared memory, and its tensors, which are zero.

    Args:
        layout: Shapes and types of the tensors.
    """
    descriptor = os.memfd_create("mjlab_dist", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(1, sum(_padded(size) for _, _, size in map(_parsed, layout.values()))))
    return descriptor, attach(descriptor, layout)


def attach(descriptor: int, layout: Layout) -> Tensors:
    """Return the tensors in shared memory, which keep it alive.

    Args:
        descriptor: From :func:`create`; may be closed afterwards.
        layout: As in :func:`create`.
    """
    memory = mmap.mmap(descriptor, 0)
    tensors, start = {}, 0
    for name, entry in layout.items():
        shape, dtype, size = _parsed(entry)
        count = math.prod(shape)
        tensors[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)
        start += _padded(size)
    return tensors


def as_arrays(tensors: Tensors) -> Arrays:
    """Return tensors as NumPy arrays, which are pickled. To send a tensor, torch would open shared memory for it.

    Args:
        tensors: On any device.
    """
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def as_tensors(arrays: Arrays) -> Tensors:
    """Return the tensors that :func:`as_arrays` converted, on the CPU.

    Args:
        arrays: The arrays.
    """
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _parsed(entry: tuple[tuple[int, ...], str]) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Return shape, type and size in bytes of a tensor."""
    shape, name = entry
    dtype: torch.dtype = getattr(torch, name)
    return shape, dtype, math.prod(shape) * dtype.itemsize


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
