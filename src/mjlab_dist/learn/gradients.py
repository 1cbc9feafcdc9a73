"""All gradients of a learner in one buffer, so that one collective averages them over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FlatGradients:
    """A flat buffer whose views are the ``.grad`` of the parameters, with a slot for one more number.

    Attributes:
        buffer: (number of parameters + 1,) in fp32. The last slot is reduced with the gradients.
        groups: For each group of parameters, the part of the buffer with its gradients.
    """

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]], device: str) -> None:
        """Allocate the buffer, and set every parameter's ``.grad`` to a view of it."""
        sizes = [sum(p.numel() for p in group) for group in groups]
        self.buffer = torch.zeros(sum(sizes) + 1, device=device)
        self.groups = self.buffer[:-1].split(sizes)
        for group, part in zip(groups, self.groups, strict=True):
            for parameter, gradient in zip(group, part.split([p.numel() for p in group]), strict=True):
                parameter.grad = gradient.view_as(parameter)

    @property
    def extra(self) -> torch.Tensor:
        """The number that is reduced with the gradients, a scalar view."""
        return self.buffer[-1]
