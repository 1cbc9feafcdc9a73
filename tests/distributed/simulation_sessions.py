"""Call every method of envs, and collect the results as tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from simulation_policies import policy

import mjlab_dist
from mjlab_dist.errors import UserError
from mjlab_dist.simulate.envs import Envs

TASK = "cartpole-balance"

NUM_ENVS = 35
"""Number of envs over all ranks. Neither two nor three ranks can share it equally."""


def make(num_ranks: int, **fields: Any) -> Envs:
    return mjlab_dist.make(
        TASK, cpu_ranks=num_ranks, total_num_envs=NUM_ENVS, seed=3, quiet=True, final_observations=True, **fields
    )


def actions(step: int) -> torch.Tensor:
    return torch.randn(NUM_ENVS, 1, generator=torch.Generator().manual_seed(step))


def session(envs: Envs) -> Iterator[Any]:
    """Yield the results of every method. Between the calls, check that wrong input is refused."""
    yield envs.reset()
    for step in range(3):
        yield envs.step(actions(step))
    state = envs.state()
    yield state
    yield envs.rollout(policy, 5)
    yield envs.set_state(state)
    with pytest.raises(UserError, match=r"here \(35, 1\)"):
        envs.step(actions(0)[:5])
    with pytest.raises(UserError, match="policy"):
        envs.rollout(lambda _: torch.zeros(1, 1), 3)
    envs.step_async(actions(7))
    yield envs.step_wait()
    yield envs.reset(seed=5)
    yield envs.step(actions(8))
    yield envs.render(32, width=32, height=24)


def flat(value: Any) -> list[torch.Tensor]:
    """Return all tensors of a result, in a fixed order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for name in sorted(value) for tensor in flat(value[name])]
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in flat(part)]
    return [torch.from_numpy(value)]


def differing(envs: Envs, expected: list[Any]) -> list[int]:
    """Return the numbers, from 0, of the calls of a session whose results differ from the expected results."""
    return [
        number
        for number, (got, wanted) in enumerate(zip(session(envs), expected, strict=True))
        if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(flat(got), flat(wanted), strict=True))
    ]
