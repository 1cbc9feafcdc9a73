"""The random numbers of several ranks, concatenated, equal those of one rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributions import (
    Binomial,
    Categorical,
    Dirichlet,
    Gamma,
    Laplace,
    Multinomial,
    MultivariateNormal,
    Normal,
)

from mjlab_dist.errors import UserError
from mjlab_dist.simulate.draws import Draws

TOTAL = 33

SPLITS = ((17, 16), (11, 11, 11), (1, 32), (5, 20, 8))

DRAWS: dict[str, Callable[[int], torch.Tensor]] = {
    "rand": lambda n: torch.rand(n, 4),
    "rand with size": lambda n: torch.rand(size=(n, 2), dtype=torch.float64),
    "rand, envs in the second dimension": lambda n: torch.rand(3, n),
    "randn": lambda n: torch.randn(n, 7),
    "randint": lambda n: torch.randint(3, 9, (n,)),
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
    "bernoulli as a method": lambda n: torch.full((n, 2), 0.3).bernoulli(),
    "bernoulli as a method, of a number": lambda n: torch.empty(n, 2).bernoulli(0.4),
    "bernoulli_ of tensors": lambda n: torch.empty(n, 2).bernoulli_(torch.full((n, 2), 0.3)),
    "rand into a tensor": lambda n: torch.rand(n, 2, out=torch.empty(n, 2)),
    "normal into a tensor": lambda n: torch.normal(torch.ones(n), torch.ones(n), out=torch.empty(n)),
    "multinomial": lambda n: torch.multinomial(weights(n), 1),
    "multinomial with replacement": lambda n: torch.multinomial(weights(n), 6, replacement=True),
    "multinomial by name": lambda n: torch.multinomial(input=weights(n), num_samples=6, replacement=True),
    "multinomial as a method": lambda n: weights(n).multinomial(2),
    "multinomial into a tensor": lambda n: torch.multinomial(weights(n), 2, out=torch.empty(n, 2, dtype=torch.long)),
    "multinomial with the same weights": lambda n: torch.multinomial(torch.tensor([1.0, 2.0, 3.0]), n, True),
    "multinomial without replacement": lambda n: torch.multinomial(torch.ones(99), n),
    "dropout": lambda n: torch.nn.functional.dropout(torch.ones(n, 5), 0.3),
    "gumbel_softmax": lambda n: torch.nn.functional.gumbel_softmax(weights(n), hard=True),
    **{
        f"distribution {name}": lambda n, made=made: made(n).sample()
        for name, made in {
            "Normal": lambda n: Normal(torch.zeros(n, 2), 1.0),
            "Laplace": lambda n: Laplace(torch.zeros(n), 1.0),
            "Categorical": lambda n: Categorical(weights(n)),
            "Multinomial": lambda n: Multinomial(6, weights(n)),
            "MultivariateNormal": lambda n: MultivariateNormal(torch.zeros(n, 2), torch.eye(2)),
        }.items()
    },
}
"""Functions that draw random numbers. The keys describe the functions. The argument is the number of envs."""

REFUSED: dict[str, Callable[[int], torch.Tensor]] = {
    "randperm": torch.randperm,
    "randperm by name": lambda n: torch.randperm(n=n),
    "multinomial": lambda n: torch.multinomial(torch.ones(n), 3),
    "poisson": lambda n: torch.poisson(torch.ones(n, 2)),
    "binomial": lambda n: Binomial(4, torch.full((n,), 0.3)).sample(),
    "standard_gamma": lambda n: Gamma(torch.ones(n), 1.0).sample(),
    "sample_dirichlet": lambda n: Dirichlet(torch.ones(n, 3)).sample(),
}
"""Draws that `make` supports only on a single rank. A key starts with the name in the error message."""


def weights(num_envs: int) -> torch.Tensor:
    """Return the same four weights for each env, (num_envs, 4)."""
    return torch.tensor([4.0, 3.0, 2.0, 1.0]).repeat(num_envs, 1)


def drawn(draw: Callable[[int], torch.Tensor], num_envs: int, first: int) -> list[torch.Tensor]:
    """Draw twice after seeding.

    The second draw shows whether the first one has advanced the generators of all ranks equally.
    """
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


@pytest.mark.parametrize("name", REFUSED)
def test_draws_that_only_one_rank_can_make_are_refused(name: str) -> None:
    assert len(drawn(REFUSED[name], TOTAL, 0)) == 2
    with pytest.raises(UserError, match=rf"^torch\.{name.split()[0]}: .*; use one device"):
        drawn(REFUSED[name], 12, 5)


def test_weights_of_each_env_choose_its_indices() -> None:
    whole = torch.rand(TOTAL, 4, generator=torch.Generator().manual_seed(1))
    expected = drawn(lambda _: torch.multinomial(whole, 2), TOTAL, 0)
    found = drawn(lambda _: torch.multinomial(whole[5:17], 2), 12, 5)
    assert all(torch.equal(own, every[5:17]) for own, every in zip(found, expected, strict=True))


def test_ranks_with_several_envs_sample_a_distribution_that_all_envs_share() -> None:
    def draw(n: int) -> torch.Tensor:
        return Categorical(torch.tensor([1.0, 2.0, 3.0])).sample((n,))

    parts = drawn(draw, 17, 0), drawn(draw, 16, 17)
    assert all(torch.equal(torch.cat(own), one) for *own, one in zip(*parts, drawn(draw, TOTAL, 0), strict=True))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(4),
        lambda: torch.randperm(7),
        lambda: torch.multinomial(torch.ones(7), 3),
        lambda: torch.poisson(torch.ones(7)),
        lambda: Gamma(torch.ones(7), 1.0).sample(),
    ],
)
def test_other_draws_are_the_same_on_all_ranks(draw: Callable[[], torch.Tensor]) -> None:
    assert all(map(torch.equal, drawn(lambda _: draw(), 12, 5), drawn(lambda _: draw(), TOTAL, 0)))


def test_one_rank_draws_as_usual() -> None:
    torch.manual_seed(5)
    expected = [torch.randn(TOTAL, 7) for _ in range(2)]
    assert all(map(torch.equal, drawn(DRAWS["randn"], TOTAL, 0), expected))


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
