"""Columns and rows of tensors over all envs: chosen by name, drawn, and written where a mask allows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from mjlab_dist.errors import UserError


class Columns:
    """Fixed columns of tensors (num_envs, width): a view where they lie side by side, else gathered."""

    def __init__(self, ids: Sequence[int], device: str) -> None:
        """Note the columns.

        Args:
            ids: Which, in the order wanted.
            device: Where the tensors are.
        """
        self.ids = tuple(ids)
        contiguous = self.ids == tuple(range(self.ids[0], self.ids[0] + len(self.ids))) if self.ids else False
        self._slice = slice(self.ids[0], self.ids[-1] + 1) if contiguous else None
        self._index = torch.tensor(self.ids, dtype=torch.long, device=device)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These columns, (num_envs, len(self), ...).

        Args:
            tensor: (num_envs, width, ...).
        """
        return tensor.index_select(1, self._index) if self._slice is None else tensor[:, self._slice]

    def write(self, tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> None:
        """Put values into these columns, of some envs only.

        Args:
            tensor: (num_envs, width), changed in place.
            mask: Which envs, (num_envs,) of bool.
            values: (num_envs, len(self)).
        """
        if self._slice is None:
            tensor.index_copy_(1, self._index, torch.where(mask.unsqueeze(1), values, self.of(tensor)))
        else:
            write_rows(tensor[:, self._slice], mask, values)


def write_rows(tensor: torch.Tensor, mask: torch.Tensor, values: torch.Tensor | float) -> None:
    """Put values into the rows of some envs.

    Args:
        tensor: (num_envs, ...), changed in place.
        mask: Which envs, (num_envs,) of bool.
        values: Of a shape that broadcasts to the tensor's.
    """
    chosen = mask.view(-1, *[1] * (tensor.dim() - 1))
    if not isinstance(values, torch.Tensor):
        tensor.masked_fill_(chosen, values)
    elif values.dtype == tensor.dtype and values.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
        torch.where(chosen, values, tensor, out=tensor)
    else:  # torch can neither convert the type nor read what it overwrites.
        tensor.copy_(torch.where(chosen, values, tensor))


def uniform(like: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Draw numbers between two bounds, in one operation.

    Args:
        like: A tensor of the shape, type and device of the result.
        low: One bound.
        high: The other.
    """
    return torch.empty_like(like).uniform_(min(low, high), max(low, high))


def find_names(what: str, patterns: Iterable[str], names: Sequence[str]) -> list[int]:
    """Which names regular expressions fit as a whole, as positions in their order.

    Args:
        what: What has these names, for messages.
        patterns: Regular expressions.
        names: The names there are.

    Raises:
        UserError: If one is no regular expression, or fits none of them.
    """
    found: set[int] = set()
    for pattern in patterns:
        try:
            fits = {i for i, name in enumerate(names) if re.fullmatch(pattern, name)}
        except re.error as error:
            raise UserError(f"{what} {pattern}: is no regular expression: {error}") from error
        if not fits:
            known = ", ".join(dict.fromkeys(filter(None, names)))
            raise UserError(f"{what} {pattern}: fits none of the model's {known or '(it has none)'}")
        found |= fits
    if not found:
        raise UserError(f"{what}: none is named; leave the parameter out for all, or drop the term")
    return sorted(found)
