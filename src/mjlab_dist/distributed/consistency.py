"""Check that all ranks hold bitwise equal tensors, with one small exchange between ranks."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import torch

from mjlab_dist.distributed.group import gather
from mjlab_dist.distributed.rank import in_words
from mjlab_dist.errors import DesyncError


def check_equal(tensors: Mapping[str, torch.Tensor], when: str) -> None:
    """Compare tensors over all ranks by their checksums.

    Raises:
        DesyncError: If a tensor is not equal on all ranks. Every rank raises this error. The message names the first
            tensor that differs, and the ranks on which it differs.
    """
    table = gather(torch.stack([checksum(t) for t in tensors.values()])).tolist()
    names = list(tensors)
    for name, *column in zip(names, *table, strict=True):
        groups = _groups(column)
        if len(groups) > 1:
            # The ranks that differ from the majority; all ranks if there is no majority
            others = sorted(rank for group in groups[1:] for rank in group)
            who = f"{in_words(others)} differ{'s' if len(others) == 1 else ''} from the others"
            if len(groups[0]) <= len(others):
                who = f"{in_words(sorted(groups[0] + others))} differ"
            differing = sum(len(set(c)) > 1 for c in zip(*table, strict=True))
            more = f", the first of {differing} tensors that differ" if differing > 1 else ""
            raise DesyncError(
                f"{when}: {who} in {name}{more}; the run ends, because all ranks must hold equal parameters. "
                "Resume from the last checkpoint; it is valid, because the parameters were equal when it was written"
            )


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """Return a scalar int64 that always changes if one element changes, and almost always changes if several change.

    The bits of each element are multiplied by an odd number that depends on its position, and summed modulo 2^64. If
    one element changes, the sum always changes, because an odd number times a nonzero difference is never 0 modulo
    2^64.
    """
    flat = tensor.detach().contiguous().view(-1)
    bits = flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]).long()
    positions = torch.arange(len(bits), device=bits.device)
    return (bits * (positions * 0x5851F42D4C957F2E + 0x14057B7EF767814F)).sum()


def _groups(column: list[int]) -> list[list[int]]:
    """Group ranks with equal values, the largest group first."""
    ranks = collections.defaultdict(list)
    for rank, value in enumerate(column):
        ranks[value].append(rank)
    return sorted(ranks.values(), key=len, reverse=True)
