"""Properties of sums over ranks: tensors are added in the order of ranks, whether whole or in parts."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from mjlab_dist.distributed import local_sum
from mjlab_dist.distributed.local_sum import LocalSum

tensors = st.tuples(
    st.lists(st.integers(0, 7), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]),
)


@settings(max_examples=20)
@given(kinds=st.lists(tensors, min_size=1, max_size=6), world_size=st.integers(2, 4), seed=st.integers(0, 2**32))
def test_every_rank_gets_the_same_sum(kinds: list[tuple[list[int], torch.dtype]], world_size: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    addends = [[(100 * torch.randn(shape, generator=g)).to(dtype) for shape, dtype in kinds] for _ in range(world_size)]
    expected = [functools.reduce(torch.add, part) for part in zip(*addends, strict=True)]
    store = HashStore()

    def add_up(rank: int) -> list[torch.Tensor]:
        summing = LocalSum(store, rank, world_size, timeout_s=20.0)
        for values in addends[rank]:
            summing.sum_(values)
        summing.close()
        return addends[rank]

    # Sum tensors of more than 64 bytes in parts, as large tensors usually are.
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(world_size) as pool:
        patch.setattr(local_sum, "MAX_WHOLE_BYTES", 64)
        for sums in pool.map(add_up, range(world_size)):
            assert all(torch.equal(a, b) for a, b in zip(sums, expected, strict=True))
