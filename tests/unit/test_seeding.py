"""One function seeds all random number generators."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mjlab_dist.seeding import seed_generators


def draws(*args: int) -> tuple[float, float, float]:
    seed_generators(*args)
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert draws(1, 2, 3) == draws(1, 2, 3)
    assert draws(7) == draws(7, 0, 0)


@pytest.mark.parametrize("other", [(2, 0, 0), (1, 1, 0), (1, 0, 1), (2**32 - 1, 5, 1000)])
def test_another_seed_rank_or_iteration_changes_every_generator(other: tuple[int, int, int]) -> None:
    assert all(a != b for a, b in zip(draws(1, 0, 0), draws(*other), strict=True))


def test_a_rank_has_the_seed_of_the_run_plus_its_rank() -> None:
    assert draws(1, 3) == draws(4, 0)
