"""Checksums of tensors, and messages that name the ranks that differ."""

from __future__ import annotations

import pytest
import torch

from mjlab_dist.distributed import group
from mjlab_dist.distributed.group import check_equal, checksum
from mjlab_dist.errors import DesyncError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_every_single_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    tensor = (100 * torch.rand(7, 3, generator=g)).to(dtype)
    unharmed = checksum(tensor)
    flat = tensor.view(-1).view(torch.uint8)
    for byte in range(len(flat)):
        for bit in range(8):
            flat[byte] ^= 1 << bit
            assert checksum(tensor) != unharmed
            flat[byte] ^= 1 << bit
    assert checksum(tensor) == unharmed


def test_swapped_values_change_the_checksum() -> None:
    tensor = torch.randn(5, 4)
    assert checksum(tensor) != checksum(tensor.flip(0))
    assert checksum(tensor.t()) == checksum(tensor.t().contiguous())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 1, 2, 1], r"rank 2 .* in b,.* 2 "),
        ([1, 2, 2, 1], r"ranks 0-3 .* in b,.* 2 "),
        ([2, 1, 1, 3, 1], r"ranks 0, 3 .* in b,.* 2 "),
        ([1, 2], r"ranks 0-1 .* in b,.* 2 "),
    ],
)
def test_tensors_and_ranks_that_differ_are_named(monkeypatch: pytest.MonkeyPatch, values: list[int], said: str) -> None:
    def gather(own: torch.Tensor) -> torch.Tensor:
        return torch.stack([own + torch.tensor([0, value, value]) for value in values])

    monkeypatch.setattr(group, "gather", gather)
    with pytest.raises(DesyncError, match=f"^iteration 7: {said}"):
        check_equal({"a": torch.ones(2), "b": torch.ones(3), "c": torch.zeros(1)}, "iteration 7")


def test_a_single_rank_passes_the_check() -> None:
    check_equal({"a": torch.full((2,), torch.nan)}, "iteration 1")
