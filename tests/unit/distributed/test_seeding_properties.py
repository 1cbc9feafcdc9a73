"""Properties of seeds: random numbers depend on the seed, the rank and the iteration, and on nothing else."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.distributed.rank import seed_generators

seeds = st.integers(0, 2**63 - 1)
ranks = st.integers(0, 10_000)
iterations = st.integers(0, 10**9)


def drawn(seed: int, rank: int, iteration: int) -> tuple[float, float, float]:
    """Return the first random numbers of Python, NumPy and torch."""
    seed_generators(seed, rank, iteration)
    return random.random(), float(np.random.random()), float(torch.rand(1, dtype=torch.float64))


@given(seed=seeds, rank=ranks, iteration=iterations)
def test_the_same_seed_rank_and_iteration_draw_the_same(seed: int, rank: int, iteration: int):
    assert drawn(seed, rank, iteration) == drawn(seed, rank, iteration)


@given(seed=seeds, places=st.sets(st.tuples(ranks, iterations), min_size=2, max_size=8))
def test_no_two_ranks_or_parts_of_a_run_draw_the_same(seed: int, places: set[tuple[int, int]]):
    draws = [drawn(seed, rank, iteration) for rank, iteration in places]
    pythons, _, torches = zip(*draws, strict=True)
    assert len(set(pythons)) == len(set(torches)) == len(places)


@given(seed=seeds, ranks=st.sets(ranks, min_size=2, max_size=8))
def test_generators_of_numpy_differ_between_ranks_too(seed: int, ranks: set[int]):
    assert len({drawn(seed, rank, 0)[1] for rank in ranks}) == len(ranks)


def test_a_rank_has_the_seed_of_the_run_plus_its_rank_and_every_iteration_draws_anew():
    assert drawn(1, 3, 0) == drawn(4, 0, 0)
    assert all(a != b for a, b in zip(drawn(1, 0, 0), drawn(1, 0, 1), strict=True))
    seed_generators(7)
    assert random.random() == drawn(7, 0, 0)[0]
