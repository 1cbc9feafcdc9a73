"""The mini-batch update in CUDA graphs: a policy's update is hundreds of small kernels, and launching them takes the time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rsl_rl.storage import RolloutStorage

from mjlab_dist.events import emit

Batch = RolloutStorage.Batch

WARM_UP = 3
"""Mini-batches before recording: libraries choose their kernels and the optimizer makes its state in them."""


class CapturedStep:
    """Backward and optimizer step, each recorded once and replayed, with the reduction launched between them.

    The reduction stays outside of the graphs, so that gloo, NCCL and a user's own synchronizer all work (docs/decisions/0006).
    """

    def __init__(
        self, backward: Callable[[Batch], None], reduce: Callable[[], None], apply: Callable[[], None], device: str
    ) -> None:
        """Record nothing yet.

        Args:
            backward: From a mini-batch to gradients.
            reduce: From this rank's gradients to those of all.
            apply: From gradients to parameters.
            device: ``cuda:<index>``.
        """
        self._backward, self._reduce, self._apply = backward, reduce, apply
        self._stream = torch.cuda.Stream(device)
        self._until_recording = WARM_UP
        self._batch: Batch | None = None
        self._graphs = (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())

    def __call__(self, batch: Batch) -> None:
        """Learn from a mini-batch; all must have the same shapes."""
        if self._until_recording == 0 and self._batch is None:
            self._record(batch)
        if self._batch is None:
            self._until_recording -= 1  # below 0 where recording has failed, which is not tried again
            self._run_eagerly(batch)
            return
        for static, new in zip(tensors_of(self._batch), tensors_of(batch), strict=True):
            static.copy_(new)
        backward, apply = self._graphs
        backward.replay()
        self._reduce()
        apply.replay()

    def _run_eagerly(self, batch: Batch) -> None:
        # On the stream of the capture to come: autograd remembers the stream that a gradient was first accumulated on.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._backward(batch)
            self._reduce()
            self._apply()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _record(self, batch: Batch) -> None:
        static = copy_batch(batch)
        backward, apply = self._graphs
        try:
            with torch.cuda.graph(backward, stream=self._stream):
                self._backward(static)
            with torch.cuda.graph(apply, stream=self._stream):
                self._apply()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            emit("warning", text=f"the update cannot be recorded as CUDA graphs and runs without: {reason}")
            return
        self._batch = static


def copy_batch(batch: Batch) -> Batch:
    """Return a mini-batch of its own memory, for graphs to read."""
    assert batch.observations is not None
    assert batch.old_distribution_params is not None
    return Batch(
        observations=batch.observations.clone(),
        actions=_clone(batch.actions),
        values=_clone(batch.values),
        advantages=_clone(batch.advantages),
        returns=_clone(batch.returns),
        old_actions_log_prob=_clone(batch.old_actions_log_prob),
        old_distribution_params=tuple(p.clone() for p in batch.old_distribution_params),
    )


def _clone(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None
    return tensor.clone()


def tensors_of(batch: Batch) -> list[torch.Tensor]:
    """Return the tensors of a mini-batch, in a fixed order."""
    assert batch.observations is not None
    assert batch.old_distribution_params is not None
    fields = (batch.actions, batch.values, batch.advantages, batch.returns, batch.old_actions_log_prob)
    return [
        *batch.observations.to_dict().values(),
        *(t for t in fields if t is not None),
        *batch.old_distribution_params,
    ]
