"""The draws of several ranks, put together, equal those of one rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mjlab_dist.simulate.draws import Draws

TOTAL = 33

SPLITS = ((17, 16), (11, 11, 11), (1, 32), (5, 20, 8))

DRAWS: dict[str, Callable[[int], torch.Tensor]] = {
    "rand": lambda n: torch.rand(n, 4),
    "rand of a sequence": lambda n: torch.rand((n,)),
    "rand with size": lambda n: torch.rand(size=(n, 2), dtype=torch.float64),
    "rand, envs in the second dimension": lambda n: torch.rand(3, n),
    "randn": lambda n: torch.randn(n, 7),
    "randint": lambda n: torch.randint(3, 9, (n,)),
    "randint without a bound": lambda n: torch.randint(9, size=(n,)),
    "rand_like": lambda n: torch.rand_like(torch.zeros(n, 3)),
    "randn_like": lambda n: torch.randn_like(torch.zeros(n)),
    "randn_like by name": lambda n: torch.randn_like(input=torch.zeros(n)),
    "randint_like": lambda n: torch.randint_like(torch.zeros(n, dtype=torch.long), 2, 50),
    "normal of tensors": lambda n: torch.normal(torch.full((n, 2), 3.0), torch.full((n, 2), 0.5)),
    "normal of numbers": lambda n: torch.normal(0.0, 2.0, (n, 2)),
    "bernoulli": lambda n: torch.bernoulli(torch.full((n,), 0.3)),
    "uniform_": lambda n: torch.empty(n, 5).uniform_(-1.0, 2.0),
    "uniform_ of a view": lambda n: torch.zeros(n, 5)[:, 1:3].uniform_(),
    "normal_": lambda n: torch.empty(n).normal_(1.0, 3.0),
    "random_": lambda n: torch.empty(n, dtype=torch.long).random_(100),
    "bernoulli_": lambda n: torch.empty(n).bernoulli_(0.4),
    "exponential_": lambda n: torch.empty(n).exponential_(),
    "a distribution": lambda n: torch.distributions.Normal(torch.zeros(n, 2), 1.0).sample(),
}


def drawn(draw: Callable[[int], torch.Tensor], num_envs: int, first: int) -> list[torch.Tensor]:
    """Draw twice with a seed, so that the second draw shows whether the first has used as many numbers."""
    draws = Draws("cpu", num_envs, first, TOTAL)
    draws.seed(5)
    results = []
    for _ in range(2):
        with draws:
            results.append(draw(num_envs))
    return results


@pytest.mark.parametrize("name", DRAWS)
def test_ranks_draw_what_one_rank_draws(name: str) -> None:
    whole = drawn(DRAWS[name], TOTAL, 0)
    dim = whole[0].shape.index(TOTAL)
    for sizes in SPLITS:
        parts = [drawn(DRAWS[name], size, sum(sizes[:i])) for i, size in enumerate(sizes)]
        for one, *split in zip(whole, *parts, strict=True):
            assert torch.equal(torch.cat(split, dim=dim), one), sizes


def test_one_rank_draws_as_usual() -> None:
    torch.manual_seed(5)
    expected = [torch.randn(TOTAL, 7) for _ in range(2)]
    assert all(map(torch.equal, drawn(DRAWS["randn"], TOTAL, 0), expected))


def test_a_draw_that_is_not_per_env_is_the_same_on_all_ranks() -> None:
    whole = drawn(lambda _: torch.rand(4), TOTAL, 0)
    assert all(map(torch.equal, drawn(lambda _: torch.rand(4), 5, 12), whole))


def test_the_generator_of_the_process_does_not_change() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    draws = Draws("cpu", 5, 0, TOTAL)
    draws.seed(2)
    with draws:
        torch.rand(5)
    with pytest.raises(ZeroDivisionError), draws:
        _ = torch.rand(5) / (1 // 0)
    assert torch.equal(torch.rand(3), expected)


def test_a_state_repeats_draws() -> None:
    draws = Draws("cpu", 5, 0, TOTAL)
    draws.seed(2)
    state = draws.state()
    with draws:
        first = torch.rand(5)
    draws.load_state(state)
    with draws:
        assert torch.equal(torch.rand(5), first)
