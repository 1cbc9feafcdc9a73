"""Precision of the networks in the update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def precision(device: str, *, is_bf16: bool) -> Iterator[None]:
    """Compute networks in bf16, as far as torch supports it, or in fp32. Parameters and gradients are in fp32."""
    kind = torch.device(device).type
    with contextlib.ExitStack() as stack:
        if is_bf16 and kind == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            # On a processor without bf16, an LSTM in bf16 fails in oneDNN. Without oneDNN, torch computes it in fp32.
            stack.callback(setattr, torch.backends.mkldnn, "enabled", torch.backends.mkldnn.enabled)
            torch.backends.mkldnn.enabled = False
        stack.enter_context(torch.autocast(kind, torch.bfloat16, enabled=is_bf16))
        yield
