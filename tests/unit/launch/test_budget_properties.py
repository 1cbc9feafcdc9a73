"""Properties of budgets: shares add up to the total, and every number that a message suggests is accepted."""

from __future__ import annotations

import dataclasses
import re

from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import UserError
from mjlab_dist.launch.budget import Budget, plan_budget

CARTPOLE = registry.task_config("cartpole-balance")

world_sizes = st.integers(1, 64)


def config_of(*, steps: int = 1, mini_batches: int = 1, rnn: bool = False, **fields: int) -> TrainConfig:
    agent = dataclasses.replace(
        CARTPOLE.agent, num_steps_per_env=steps, num_mini_batches=mini_batches, rnn="gru" if rnn else "none"
    )
    return dataclasses.replace(CARTPOLE, **{"total_num_envs": None, "agent": agent, **fields})


def planned(config: TrainConfig, world_size: int) -> Budget | UserError:
    """Return the budget, or the message with which the config is refused."""
    try:
        budget = plan_budget(config, world_size)
    except UserError as error:
        return error
    assert budget is not None
    return budget


def suggestions(refusal: UserError) -> list[int]:
    """Return the numbers that an error message suggests after its last "use"."""
    return [int(number) for number in re.findall(r"\d+", re.split(r"\buse ", str(refusal))[-1])]


@given(
    total=st.integers(1, 2000),
    steps=st.integers(1, 40),
    mini_batches=st.integers(1, 70),
    rnn=st.booleans(),
    world_size=world_sizes,
)
def test_a_total_is_rounded_up_to_the_next_number_that_ranks_and_mini_batches_can_share(
    total: int, steps: int, mini_batches: int, rnn: bool, world_size: int
):
    found = planned(config_of(total_num_envs=total, steps=steps, mini_batches=mini_batches, rnn=rnn), world_size)
    least = -(-total // world_size)
    if not isinstance(found, Budget):
        assert str(found).startswith(f"--agent.num-mini-batches {mini_batches}:")
        assert all((envs if rnn else envs * steps) % mini_batches for envs in range(least, int(1.25 * least) + 1))
        return
    rounded = found.num_envs * world_size
    assert rounded >= total
    assert (found.num_envs if rnn else found.num_envs * steps) % mini_batches == 0
    assert (found.notes == ()) == (rounded == total)
    for fewer in range(least, found.num_envs):
        assert (fewer if rnn else fewer * steps) % mini_batches


@given(timesteps=st.integers(1, 10**7), num_envs=st.integers(1, 512), steps=st.integers(1, 64), world_size=world_sizes)
def test_timesteps_become_as_many_whole_iterations_as_fit(timesteps: int, num_envs: int, steps: int, world_size: int):
    config = config_of(steps=steps, num_envs=num_envs, total_timesteps=timesteps)
    per_iteration = steps * num_envs * world_size
    found = planned(config, world_size)
    if isinstance(found, Budget):
        trained = found.max_iterations * per_iteration
        assert 0 <= timesteps - trained < per_iteration
        assert (found.notes == ()) == (trained == timesteps)
        return
    assert str(found).startswith(f"--total-timesteps {timesteps}:")
    assert timesteps < per_iteration
    corrected = planned(dataclasses.replace(config, total_timesteps=suggestions(found)[0]), world_size)
    assert isinstance(corrected, Budget)
    assert corrected.max_iterations == 1


@given(iterations=st.integers(1, 10**9), num_envs=st.integers(1, 10**6), world_size=world_sizes)
def test_numbers_per_rank_stay_what_they_are(iterations: int, num_envs: int, world_size: int):
    found = planned(config_of(num_envs=num_envs, max_iterations=iterations), world_size)
    assert found == Budget(num_envs=num_envs, max_iterations=iterations)


@given(fsdp=st.integers(1, 64), world_size=world_sizes)
def test_shards_divide_the_number_of_ranks_or_are_refused_with_its_divisors(fsdp: int, world_size: int):
    config = config_of(num_envs=1, fsdp_devices=fsdp)
    found = planned(config, world_size)
    if isinstance(found, Budget):
        assert world_size % fsdp == 0
        return
    assert str(found).startswith(f"--fsdp-devices {fsdp}:")
    assert suggestions(found)
    for other in suggestions(found):
        assert isinstance(planned(dataclasses.replace(config, fsdp_devices=other), world_size), Budget)


@given(num_envs=st.integers(1, 300), steps=st.integers(1, 40), mini_batches=st.integers(1, 70), rnn=st.booleans())
def test_a_refused_number_of_mini_batches_comes_with_one_that_is_accepted(
    num_envs: int, steps: int, mini_batches: int, rnn: bool
):
    found = planned(config_of(steps=steps, mini_batches=mini_batches, rnn=rnn, num_envs=num_envs), 1)
    if isinstance(found, Budget):
        assert (num_envs if rnn else num_envs * steps) % mini_batches == 0
        return
    assert str(found).startswith(f"--agent.num-mini-batches {mini_batches}:")
    (other,) = suggestions(found)
    corrected = config_of(steps=steps, mini_batches=other, rnn=rnn, num_envs=num_envs)
    assert isinstance(planned(corrected, 1), Budget)
