"""Operations on columns and rows of tensors over all envs: selection of columns, random draws, masked writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

# A parameter: a number, or a 0-dim tensor if a curriculum changes it
Number = float | torch.Tensor


class Columns:
    """A fixed selection of columns, for tensors of shape (num_envs, width)."""

    def __init__(self, ids: Sequence[int], device: str) -> None:
        """Store the columns.

        Args:
            ids: Indices of the columns, in the required order.
            device: Device of the tensors.
        """
        self.ids = tuple(ids)
        contiguous = self.ids == tuple(range(self.ids[0], self.ids[0] + len(self.ids))) if self.ids else False
        self._slice = slice(self.ids[0], self.ids[-1] + 1) if contiguous else None
        self._index = torch.tensor(self.ids, dtype=torch.long, device=device)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these columns of a tensor, (num_envs, len(self), ...): a view if they are contiguous, else a copy.

        Args:
            tensor: (num_envs, width, ...).
        """
        return tensor.index_select(1, self._index) if self._slice is None else tensor[:, self._slice]

    def set(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write values to these columns.

        Args:
            tensor: (num_envs, width, ...), changed in place.
            values: (num_envs, len(self), ...), or a tensor that can be expanded to this shape.
        """
        if self._slice is None:
            tensor.index_copy_(1, self._index, values.expand(len(tensor), len(self), *tensor.shape[2:]))
        else:
            tensor[:, self._slice] = values

    def write(self, tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> None:
        """Write values to these columns in some envs.

        Args:
            tensor: (num_envs, width), changed in place.
            mask: Envs to write, (num_envs,) of bool.
            values: (num_envs, len(self)).
        """
        if self._slice is None:
            tensor.index_copy_(1, self._index, torch.where(mask.unsqueeze(1), values, self.of(tensor)))
        else:
            write_rows(tensor[:, self._slice], mask, values)


def write_rows(tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor | float) -> None:
    """Write values to the rows of some envs.

    Args:
        tensor: (num_envs, ...), changed in place.
        mask: Envs to write, (num_envs,) of bool.
        values: A number, or a tensor that broadcasts to the shape of ``tensor``.
    """
    chosen = mask.view(-1, *[1] * (tensor.dim() - 1))
    if not isinstance(values, torch.Tensor):
        tensor.masked_fill_(chosen, values)
    elif values.dtype == tensor.dtype and values.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        torch.where(chosen, values, tensor, out=tensor)
    else:  # with out=, torch neither converts the type nor allows inputs that share memory with the output
        tensor.copy_(torch.where(chosen, values, tensor))


def draw_until(
    draw: Callable[[], torch.Tensor], holds: Callable[[torch.Tensor], torch.Tensor], *, num_tries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw values for each env until a condition holds (rejection sampling).

    The function always makes ``num_tries`` draws for all envs, so that a CUDA graph can record it.

    Args:
        draw: Function that draws values for all envs, (num_envs, ...).
        holds: Function that returns the envs in which the condition holds for drawn values, (num_envs,) of bool.
        num_tries: Number of draws.

    Returns:
        For each env, the first draw for which the condition holds, or the last draw if it holds for none,
        (num_envs, ...); and whether the condition holds for this draw, (num_envs,) of bool.
    """
    values = draw()
    found = holds(values)
    for _ in range(num_tries - 1):
        drawn = draw()
        values = torch.where(found.view(-1, *[1] * (values.dim() - 1)), values, drawn)
        found = found | holds(drawn)
    return values, found


class Bounds:
    """A minimum and a maximum for each of k numbers; a curriculum may change some of these bounds.

    Attributes:
        low: Minimum of each number, (k,).
        high: Maximum of each number, (k,).
    """

    def __init__(self, ranges: Sequence[tuple[Number, Number]], device: str) -> None:
        """Store the ranges.

        Args:
            ranges: Range of each number.
            device: Device of the tensors.
        """
        ends = [end for column in zip(*ranges, strict=True) for end in column]
        changes = any(isinstance(end, torch.Tensor) for end in ends)
        tensors = [torch.as_tensor(end, dtype=torch.float32, device=device) for end in ends]
        self._sources = tensors if changes else []
        self._ends = torch.stack(tensors)
        self.low, self.high = self._ends.view(2, -1)

    def update(self) -> None:
        """Copy the current ranges to ``low`` and ``high``. If no curriculum changes them, this does nothing."""
        if self._sources:
            torch.stack(self._sources, out=self._ends)


def uniform(like: torch.Tensor, low: Number, high: Number) -> torch.Tensor:
    """Draw numbers uniformly between two bounds.

    Args:
        like: A tensor with the shape, type and device of the result.
        low: One bound: a number, or the 0-dim tensor of a parameter that a curriculum changes.
        high: The other bound; may be smaller than ``low``.
    """
    if isinstance(low, torch.Tensor) or isinstance(high, torch.Tensor):
        return torch.rand_like(like).mul_(high - low).add_(low)
    return torch.empty_like(like).uniform_(min(low, high), max(low, high))


def normal(like: torch.Tensor, mean: Number, std: Number) -> torch.Tensor:
    """Draw numbers from a normal distribution.

    Args:
        like: A tensor with the shape, type and device of the result.
        mean: Mean, as a number or as the 0-dim tensor of a parameter that a curriculum changes.
        std: Standard deviation, in the same form.
    """
    if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
        return torch.randn_like(like).mul_(std).add_(mean)
    return torch.empty_like(like).normal_(mean, std)


def cos(number: Number) -> Number:
    """Return the cosine of a parameter that a curriculum may change."""
    return number.cos() if isinstance(number, torch.Tensor) else math.cos(number)


def log(number: Number) -> Number:
    """Return the logarithm of a parameter that a curriculum may change."""
    return number.log() if isinstance(number, torch.Tensor) else math.log(number)


def is_convertible(dtype: torch.dtype) -> bool:
    """Return whether the result of a term may have this type: float32, or a type that the env converts to float32.

    float64 is not allowed, because it would slow down a GPU. Complex types are not allowed either.

    Args:
        dtype: Type of the result of a term.
    """
    return dtype != torch.float64 and not dtype.is_complex
