"""Copy any number of tensors to host memory, with only one wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU and wait until all copies are complete.

    Returns:
        Copies on the CPU, without gradients; each copy has its own memory.
    """
    # Copies from a GPU go to pinned memory, so that they run while the host continues.
    copies = [tensor.detach().to("cpu", non_blocking=True, copy=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies
