"""Example of a synchronizer: bf16 gradients with error feedback (Karimireddy et al. 2019, arXiv:1901.09847).

The rounding error of each mini-batch is added to the gradients of the next mini-batch. Train with it:

  PYTHONPATH=docs/examples uv run train cartpole-balance --cpu-ranks 2 --sync.synchronizer error_feedback:ErrorFeedback
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class ErrorFeedback:
    """Averages gradients over ranks in bf16, and adds the rounding error to the gradients of the next mini-batch."""

    keeps_equal = True
    """All ranks get the same sums, so their parameters never differ."""

    def __init__(self) -> None:
        self._error: torch.Tensor | None = None

    def reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its mean over ranks.

        Args:
            buffer: This rank's gradients, and the KL divergence in the last slot; (parameters + 1,) in fp32.
        """
        if self._error is None:
            self._error = torch.zeros_like(buffer)
        wanted = buffer + self._error
        sent = (wanted / dist.get_world_size()).to(torch.bfloat16)
        torch.sub(wanted, sent.float() * dist.get_world_size(), out=self._error)
        self._error[-1] = 0.0  # the KL divergence is not accumulated, so its rounding error is dropped
        dist.all_reduce(sent)
        buffer.copy_(sent)

    def due(self, iteration: int) -> bool:  # noqa: ARG002 (part of the protocol)
        """Return False: parameters never need to be averaged."""
        return False
