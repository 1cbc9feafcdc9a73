"""A synchronizer of one's own: gradients travel in bf16, and what rounding takes from one mini-batch is given to the next.

Error feedback as in Karimireddy et al. 2019, arXiv:1901.09847. Train with it:

    PYTHONPATH=docs/examples uv run train cartpole-balance --cpu-ranks 2 --sync.synchronizer error_feedback:ErrorFeedback
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class ErrorFeedback:
    """The mean over ranks of gradients rounded to bf16, with the error of rounding kept for the next time."""

    keeps_equal = True
    """Every rank adds up the same numbers, so parameters never differ."""

    def __init__(self) -> None:
        self._error: torch.Tensor | None = None

    def reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its mean over ranks.

        Args:
            buffer: (parameters + 1,) in fp32: this rank's gradients, and the KL divergence in the last slot.
        """
        if self._error is None:
            self._error = torch.zeros_like(buffer)
        wanted = buffer + self._error
        sent = (wanted / dist.get_world_size()).to(torch.bfloat16)
        torch.sub(wanted, sent.float() * dist.get_world_size(), out=self._error)
        self._error[-1] = 0.0  # the KL divergence is measured anew each time
        dist.all_reduce(sent)
        buffer.copy_(sent)

    def due(self, iteration: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Never: nothing has to be averaged."""
        return False
