"""Random numbers of SAC: they are uniform or normal, and depend only on key and position."""

from __future__ import annotations

import pytest
import torch

from mjlab_dist.learn.sac.keyed_random import random_integers, random_normals

COUNT = 200_000


def test_integers_are_those_of_splitmix64() -> None:
    """Vigna's reference implementation, https://prng.di.unimi.it/splitmix64.c, returns these numbers for seed 0."""
    reference = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    # Key 0 starts from splitmix64's function of 0, which is 0
    assert random_integers(0, torch.arange(3)).tolist() == [number >> 11 for number in reference]


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1])
def test_normals_have_the_moments_and_quantiles_of_the_normal_distribution(key: int) -> None:
    normals = random_normals(key, torch.arange(COUNT), 3)
    assert normals.shape == (COUNT, 3)
    mean, std = normals.mean(dim=0), normals.std(dim=0)
    torch.testing.assert_close(mean, torch.zeros(3), atol=0.01, rtol=0)
    torch.testing.assert_close(std, torch.ones(3), atol=0.01, rtol=0)
    for limit, share in ((1.0, 0.6827), (2.0, 0.9545), (3.0, 0.9973)):
        assert (normals.abs() < limit).float().mean().item() == pytest.approx(share, abs=3e-3)
    # Neither columns nor neighbors are correlated
    correlations = torch.corrcoef(torch.cat([normals[:-1].T, normals[1:].T])) - torch.eye(6)
    assert correlations.abs().max() < 0.01


def test_keys_are_independent_and_positions_can_be_drawn_in_any_part() -> None:
    positions = torch.arange(COUNT)
    whole = random_normals(5, positions, 2)
    assert torch.equal(random_normals(5, positions[1000:1010], 2), whole[1000:1010])
    other = random_normals(6, positions, 2)
    assert torch.corrcoef(torch.stack([whole[:, 0], other[:, 0]]))[0, 1].abs() < 0.01
