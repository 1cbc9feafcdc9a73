"""All gradients of a learner in one buffer, so that one collective carries them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class FlatGradients:
    """A flat buffer that the parameters' ``.grad`` are views of, with room for one more number.

    Attributes:
        buffer: (number of parameters + 1,) in fp32. The last slot travels with the gradients.
        groups: The part of the buffer that holds each group of parameters.
    """

    def __init__(self, groups: Sequence[Sequence[torch.nn.Parameter]], device: str) -> None:
        """Make the buffer and point every parameter's ``.grad`` into it.

        Args:
            groups: Parameters, in groups whose gradients are clipped together.
            device: Where the parameters are.
        """
        sizes = [sum(p.numel() for p in group) for group in groups]
        self.buffer = torch.zeros(sum(sizes) + 1, device=device)
        self.groups = self.buffer[:-1].split(sizes)
        for group, part in zip(groups, self.groups, strict=True):
            for parameter, gradient in zip(group, part.split([p.numel() for p in group]), strict=True):
                parameter.grad = gradient.view_as(parameter)

    @property
    def extra(self) -> torch.Tensor:
        """The number that travels with the gradients, a scalar view."""
        return self.buffer[-1]
