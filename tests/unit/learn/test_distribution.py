"""The policy's distribution equals torch's, and a standard deviation that has shrunk to its bound can grow again."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from rollouts import AGENT, collect, make_data, make_learner, train_config
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from mjlab_dist.learn.networks import BoundedGaussian

NUM_ENVS = 8

MIN_STD = 0.05


class Operations(TorchDispatchMode):
    """Collects the names of dispatched operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_samples_equal_those_of_torch() -> None:
    distribution = BoundedGaussian(6, init_std=0.3, min_std=1e-3, std_type="scalar")
    distribution.update(torch.linspace(-1.0, 1.0, 24).view(4, 6))
    torch.manual_seed(3)
    with Operations() as operations:
        ours = distribution.sample()
    torch.manual_seed(3)
    torch.testing.assert_close(ours, torch.normal(distribution.mean, distribution.std), rtol=0, atol=1e-7)
    assert "randn_like" in operations.names
    assert "normal" not in operations.names


@pytest.mark.parametrize("broken", [float("nan"), -1.0])
def test_sampling_with_an_invalid_standard_deviation_raises_no_error(broken: float) -> None:
    """On CUDA, a failed assertion in a kernel would make the device unusable, and the error could not be reported."""
    distribution = BoundedGaussian(3, init_std=1.0, min_std=MIN_STD, std_type="scalar")
    with torch.no_grad():
        distribution.std_param[0] = broken
    distribution.update(torch.zeros(4, 3))
    drawn = distribution.sample()
    assert drawn[:, 0].isnan().all() == math.isnan(broken)
    assert drawn[:, 1:].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("std_type", ["scalar", "log"])
def test_a_standard_deviation_at_its_bound_grows_again(std_type: str) -> None:
    fields = {"init_std": 0.06, "min_std": MIN_STD, "std_type": std_type, "schedule": "fixed", "learning_rate": 0.01}
    torch.manual_seed(0)
    learner = make_learner(train_config(dataclasses.replace(AGENT, **fields)), NUM_ENVS)

    def learn(entropy_coef: float, num_iterations: int) -> torch.Tensor:
        learner.entropy_coef = entropy_coef
        for iteration in range(num_iterations):
            collect(learner, make_data(NUM_ENVS, iteration))
            learner.update()
        learner.act(next_observations())
        return learner.actor.output_std[0]

    at_the_bound = learn(-10.0, 5)
    torch.testing.assert_close(at_the_bound, torch.full_like(at_the_bound, MIN_STD))
    assert (learn(10.0, 5) > 1.4 * MIN_STD).all()


def next_observations() -> TensorDict:
    obs = {name: o[0] for name, o in make_data(NUM_ENVS, 0).obs.items()}
    return TensorDict(obs, batch_size=[NUM_ENVS])
