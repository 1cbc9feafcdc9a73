"""Rows of some envs: torch writes the rows of one tensor, and one kernel clears the rows of many tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from legged import EVERYTHING, make

from mjlab_dist.env import Env
from mjlab_dist.env.columns import draw_until, uniform, write_rows

NUM_ENVS = 6
MASK = torch.tensor([True, False, False, True, False, True])


@pytest.fixture(scope="module")
def shared(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    return make(NUM_ENVS, config=EVERYTHING)


@pytest.fixture
def env(shared: Env) -> Iterator[Env]:
    before = shared.state()
    yield shared
    shared.load_state(before)


# Rows that the kernel clears

TENSORS = {
    "numbers": torch.rand(NUM_ENVS, 3, 4) + 1.0,
    "doubles": torch.rand(NUM_ENVS, 2, dtype=torch.float64) + 1.0,
    "one each": torch.rand(NUM_ENVS) + 1.0,
    "booleans": torch.ones(NUM_ENVS, 5, dtype=torch.bool),
    "integers": torch.ones(NUM_ENVS, dtype=torch.long),
    "columns": (torch.rand(NUM_ENVS, 7) + 1.0)[:, 2:5],
    "a column": (torch.rand(NUM_ENVS, 7) + 1.0)[:, 3],
    "a row of a table": (torch.rand(3, NUM_ENVS) + 1.0)[1],
    "not finite": torch.full((NUM_ENVS, 2), torch.nan),
    "none": torch.ones(NUM_ENVS, 0),
}


def test_only_masked_rows_are_cleared_for_all_types_and_strides(env: Env) -> None:
    tensors = {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for name, t in TENSORS.items()}
    around = {name: torch.full((NUM_ENVS, 7), 3.0) for name in ("columns", "a column")}
    tensors["columns"], tensors["a column"] = around["columns"][:, 2:5], around["a column"][:, 3]
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    clear = env.sim.record_clearing(list(tensors.values()))
    env.sim.reset(MASK)
    clear()
    for name, tensor in tensors.items():
        assert not tensor[MASK].any(), name
        torch.testing.assert_close(tensor[~MASK], before[name][~MASK], rtol=0, atol=0, equal_nan=True)
    assert (around["columns"][:, [0, 1, 5, 6]] == 3.0).all()
    assert (around["a column"][:, [0, 1, 2, 4, 5, 6]] == 3.0).all()


def test_rows_that_are_not_contiguous_are_refused(env: Env) -> None:
    with pytest.raises(AssertionError):
        env.sim.record_clearing([torch.ones(3, NUM_ENVS).T])


def test_term_memory_is_cleared_only_in_envs_whose_episode_starts(env: Env) -> None:
    actions = torch.rand(NUM_ENVS, env.num_actions)
    for _ in range(3):
        env.step(actions)
    cleared = [tensor for term in env.terms.values() for tensor in term.cleared()]
    own = [env.actions, env.previous_actions, env.episode_length_buf, env._episodes.rewards.T, *env._actions.cleared()]
    assert len(cleared) > 10
    for tensor in (*cleared, *own):
        tensor.fill_(1)
    before = [tensor.clone() for tensor in (*cleared, *own)]
    env._start_episodes(MASK)
    for tensor, old in zip((*cleared, *own), before, strict=True):
        assert not tensor[MASK].any()
        assert torch.equal(tensor[~MASK], old[~MASK])


# Rows that torch writes


@pytest.mark.parametrize(
    "values", [torch.rand(NUM_ENVS, 3), torch.rand(3), torch.rand(NUM_ENVS, 3).double(), torch.arange(3), 2.0]
)
def test_values_of_any_type_are_written_to_masked_rows(values: torch.Tensor | float) -> None:
    written = torch.ones(NUM_ENVS, 3)
    write_rows(written, MASK, values)
    expected = torch.as_tensor(values).float().expand(NUM_ENVS, 3)
    assert torch.equal(written[MASK], expected[MASK])
    assert (written[~MASK] == 1.0).all()


def test_numbers_are_converted_to_integers() -> None:
    written = torch.zeros(NUM_ENVS, dtype=torch.long)
    write_rows(written, MASK, torch.full((NUM_ENVS,), 2.7))
    assert written.tolist() == (2 * MASK.long()).tolist()


def test_rows_may_be_written_from_overlapping_memory() -> None:
    written = torch.arange(12.0).view(NUM_ENVS, 2)
    write_rows(written, MASK, written[:, :1].expand(NUM_ENVS, 2))
    assert written[:, 1].tolist() == [0.0, 3.0, 5.0, 6.0, 9.0, 10.0]


def test_uniform_samples_are_between_the_bounds_in_either_order() -> None:
    like = torch.zeros(1000, 2)
    for low, high in ((-2.0, 3.0), (3.0, -2.0)):
        drawn = uniform(like, low, high)
        assert -2.0 <= drawn.min() < -1.9
        assert 2.9 < drawn.max() <= 3.0
    assert (uniform(like, 1.5, 1.5) == 1.5).all()


def test_values_are_drawn_until_a_condition_holds_with_a_fixed_number_of_draws() -> None:
    num_envs = 5000
    calls: list[torch.Tensor] = []

    def draw() -> torch.Tensor:
        calls.append(torch.rand(num_envs, 2))
        return calls[-1]

    def holds(values: torch.Tensor) -> torch.Tensor:
        return values[:, 0] < 0.3

    values, found = draw_until(draw, holds, num_tries=4)
    assert len(calls) == 4
    fits = torch.stack([holds(call) for call in calls])
    first = torch.where(fits.any(dim=0), fits.int().argmax(dim=0), 3)
    assert torch.equal(values, torch.stack(calls)[first, torch.arange(num_envs)])
    assert torch.equal(found, fits.any(dim=0))
    assert abs(float(found.float().mean()) - (1 - 0.7**4)) < 0.05
    assert draw_until(draw, holds, num_tries=1)[0] is calls[-1]
