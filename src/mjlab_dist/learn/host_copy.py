"""Copies of tensors in host memory, for which the host waits for the device once, however many tensors there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the CPU and wait until all copies are complete.

    Args:
        tensors: On any device.

    Returns:
        A copy of each on the CPU, without a gradient, whatever the tensor is a view of.
    """
    # Copies from a GPU go to pinned memory, which is what lets them run while the host continues.
    copies = [tensor.detach().to("cpu", non_blocking=True, copy=True) for tensor in tensors]
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    return copies
