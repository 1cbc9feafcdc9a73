"""State of a single rank: packing into one tensor and unpacking, and the states of all random generators."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from mjlab_dist.errors import UserError
from mjlab_dist.learn.rank_state import fits, pack, random_state, restore_random_state, unpack

STATE = {
    "env/qpos": torch.randn(3, 5),
    "env/from_start": torch.tensor([True, False, True]),
    "env/episode_length": torch.tensor([1, -2, 1 << 40]),
    "env/total": torch.tensor(2.5, dtype=torch.float64),
    "env/act": torch.empty(3, 0),
    "random/torch": torch.get_rng_state(),
}


def test_a_packed_state_unpacks_unchanged():
    packed = pack(STATE)
    assert packed.dtype == torch.uint8
    assert packed.shape == (sum(t.nbytes for t in STATE.values()),)
    back = unpack(packed, STATE)
    assert back.keys() == STATE.keys()
    for name, tensor in STATE.items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor), name


def test_a_state_fits_only_the_same_shapes():
    assert fits({**STATE, "memory/actor/0": torch.zeros(1)}, STATE)
    assert not fits({k: t for k, t in STATE.items() if k != "env/act"}, STATE)
    assert not fits({**STATE, "env/qpos": torch.zeros(4, 5)}, STATE)
    assert not fits({**STATE, "env/qpos": torch.zeros(3, 5, dtype=torch.float64)}, STATE)


def draws() -> list[float]:
    return [torch.rand(()).item(), random.random(), random.gauss(), np.random.rand(), np.random.randn()]


def test_every_random_generator_resumes_from_its_state():
    random.gauss()
    np.random.randn()  # NumPy and Python draw pairs, and keep the second number, which the state must contain
    state = {name: tensor.clone() for name, tensor in random_state("cpu").items()}
    first = [draws() for _ in range(3)]
    restore_random_state(state, "cpu")
    assert [draws() for _ in range(3)] == first


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("numpy", {624: 10**9}),
        ("numpy", {624: -1}),
        ("numpy", {0: -1}),
        ("python", {624: 625}),
        ("python", {0: 2**40}),
        ("torch", {8: 0, 9: 0}),  # no number is left, at any position
        ("torch", {8: 88, 9: 2, 16: 88, 17: 2}),  # 600 numbers are left, at position 600 of 624
    ],
)
def test_a_random_state_that_would_index_other_memory_is_refused(name: str, changes: dict[int, int]):
    state = random_state("cpu")
    for entry, wrong in changes.items():
        state[name][entry] = wrong
    with pytest.raises(UserError, match=f"^random/{name} .*; it is damaged") as caught:
        restore_random_state(state, "cpu")
    assert "\n" not in str(caught.value)
