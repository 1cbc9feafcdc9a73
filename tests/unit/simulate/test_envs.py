"""Envs that are simulated in the process of the caller."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from configs import changed
from tensordict import TensorDict

import mjlab_dist
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.simulate.envs import Envs

TASK = "cartpole-balance"

NUM_ENVS = 5

SHORT = {"env.episode_length_s": 0.2}
"""Twenty steps per episode."""


DELAYED = {"env.observations.actor.pole_velocity.history": 3, "env.observations.actor.pole_velocity.delay": (1, 2)}


def make(**fields: Any) -> Envs:
    return mjlab_dist.make(TASK, **{"gpu_ids": None, "total_num_envs": NUM_ENVS, "seed": 3, "quiet": True, **fields})


@pytest.fixture(scope="module")
def envs() -> Iterator[Envs]:
    with make() as made:
        yield made


def actions(seed: int, num_envs: int = NUM_ENVS) -> torch.Tensor:
    return torch.randn(num_envs, 1, generator=torch.Generator().manual_seed(seed))


def actor(observations: TensorDict) -> torch.Tensor:
    value = observations["actor"]
    assert isinstance(value, torch.Tensor)
    return value


def test_steps_equal_those_of_the_env_in_training(envs: Envs) -> None:
    env = Env(mjlab_dist.task_config(TASK).env, NUM_ENVS, "cpu")
    observations = envs.reset(seed=7)
    torch.manual_seed(7)
    assert torch.equal(observations["actor"], actor(env.reset()))
    for step in range(5):
        got = envs.step(actions(step))
        wanted, reward, done, extras = env.step(actions(step))
        assert torch.equal(got.observations["actor"], actor(wanted))
        assert torch.equal(got.rewards, reward)
        assert torch.equal(torch.logical_or(got.terminated, got.truncated), done)
        assert torch.equal(got.truncated, extras["time_outs"])


def test_envs_report_their_sizes_and_names(envs: Envs) -> None:
    assert (envs.num_envs, envs.num_actions, envs.device) == (NUM_ENVS, 1, "cpu")
    assert envs.observation_widths == {"actor": 5}
    assert envs.action_names == ("force",)
    assert envs.model.nq == 2
    assert envs.step_dt_s == pytest.approx(0.01)


def test_a_seed_restarts_from_any_state(envs: Envs) -> None:
    first = envs.reset(seed=1)["actor"]
    envs.step(actions(0))
    assert not torch.equal(envs.reset()["actor"], first)
    assert torch.equal(envs.reset(seed=1)["actor"], first)
    assert not torch.equal(envs.reset(seed=2)["actor"], first)


def test_draws_of_the_caller_have_no_effect(envs: Envs) -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = envs.reset(seed=1)["actor"]
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(envs.reset(seed=1)["actor"], first)


def test_a_state_repeats_steps(envs: Envs) -> None:
    envs.reset(seed=1)
    before = envs.step(actions(0))
    state = envs.state()
    after, start = envs.step(actions(1)), envs.reset()
    assert torch.equal(envs.set_state(state)["actor"], before.observations["actor"])
    again = envs.step(actions(1))
    assert torch.equal(again.observations["actor"], after.observations["actor"])
    assert torch.equal(again.rewards, after.rewards)
    assert torch.equal(envs.reset()["actor"], start["actor"]), "the state includes the state of the random generator"
    with pytest.raises(UserError, match="is missing"):
        envs.set_state({})


def test_a_damaged_state_is_refused_and_changes_nothing() -> None:
    with make(variants=[{}, {}], total_num_envs=4) as envs:
        start = envs.reset(seed=1)
        state = envs.state()
        envs.step(actions(0, 4))
        for name, wrong in (
            ("1/episode_length", torch.tensor([0, -1])),
            ("1/draws.cpu", state["1/draws.cpu"].flip(0)),
            ("policy_draws.cpu", torch.zeros(3, dtype=torch.uint8)),
        ):
            before = envs.state()
            with pytest.raises(UserError, match=rf"{name.split('.')[-1].split('/')[-1]} .*damaged") as caught:
                envs.set_state({**state, name: wrong})
            assert "\n" not in str(caught.value)
            assert all(torch.equal(tensor, before[name]) for name, tensor in envs.state().items())
        assert torch.equal(envs.set_state(state)["actor"], start["actor"])


def test_results_are_new_in_every_step(envs: Envs) -> None:
    envs.reset(seed=1)
    steps = [envs.step(actions(step)) for step in range(3)]
    copies = [step.rewards.clone() for step in steps]
    envs.step(actions(4))
    assert all(torch.equal(step.rewards, copy) for step, copy in zip(steps, copies, strict=True))
    assert len({step.observations["actor"].data_ptr() for step in steps}) == 3


def test_changing_results_does_not_change_the_envs() -> None:
    with make(final_observations=True) as envs:
        envs.reset(seed=1)
        state, expected = envs.state(), envs.step(actions(0))

        def act(_: object) -> torch.Tensor:
            return actions(0)

        for call in (
            lambda: envs.set_state(state)["actor"],
            lambda: envs.reset(seed=1)["actor"],
            lambda: envs.step(actions(1)).observations["actor"],
            lambda: envs.step(actions(1)).info["final_observations"]["actor"],
            lambda: envs.rollout(act, 2).last_observations["actor"],
        ):
            call().zero_()
            assert envs.rollout(act, 1).observations["actor"].all()
        envs.set_state(state)
        assert torch.equal(envs.step(actions(0)).observations["actor"], expected.observations["actor"])


def test_a_rollout_equals_steps_with_the_same_policy(envs: Envs) -> None:
    def policy(observations: dict[str, torch.Tensor]) -> torch.Tensor:
        return observations["actor"][:, :1] * 0.3

    start = envs.reset(seed=1)
    rollout = envs.rollout(policy, 4)
    assert torch.equal(envs.reset(seed=1)["actor"], start["actor"])
    observations = start
    for step in range(4):
        assert torch.equal(rollout.observations["actor"][step], observations["actor"])
        made = envs.step(policy(observations))
        assert torch.equal(rollout.actions[step], policy(observations))
        assert torch.equal(rollout.rewards[step], made.rewards)
        observations = made.observations
    assert torch.equal(rollout.last_observations["actor"], observations["actor"])


def test_draws_of_a_policy_are_repeatable_and_do_not_change_those_of_envs(envs: Envs) -> None:
    envs.reset(seed=1)
    first = envs.rollout(lambda _: torch.randn(NUM_ENVS, 1), 3)
    after = envs.reset()["actor"]
    envs.reset(seed=1)
    assert torch.equal(envs.rollout(lambda _: torch.randn(NUM_ENVS, 1), 3).actions, first.actions)
    assert torch.equal(envs.reset()["actor"], after)
    envs.reset(seed=1)
    envs.rollout(lambda _: torch.zeros(NUM_ENVS, 1), 3)
    assert torch.equal(envs.reset()["actor"], after)


@contextlib.contextmanager
def envs_stay_as_they_were(envs: Envs) -> Iterator[None]:
    """Check that the first step after a reset has the same result after the calls in between."""
    envs.reset(seed=1)
    expected = envs.step(actions(0)).observations["actor"]
    envs.reset(seed=1)
    yield
    assert torch.equal(envs.step(actions(0)).observations["actor"], expected)


WRONG: dict[str, tuple[Any, str]] = {
    "shape": (torch.zeros(4, 1), r"\(4, 1\); .* \(5, 1\)"),
    "number of dimensions": (torch.zeros(5), r"\(5,\); .* \(5, 1\)"),
    "integers": (torch.zeros(5, 1, dtype=torch.int64), "int64"),
    "nan": (torch.tensor([[0.0], [0.0], [torch.nan], [0.0], [0.0]]), "action 0 of env 2 is nan"),
    "infinite": (np.full((5, 1), np.inf), "env 0 is inf"),
    "text": ("left", "str"),
    "objects": ([[object()]] * 5, "list"),
    "ragged": ([[0.0], [0.0, 1.0]], "list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_actions_are_refused_and_simulate_nothing(envs: Envs, name: str) -> None:
    wrong, words = WRONG[name]
    with envs_stay_as_they_were(envs), pytest.raises(UserError, match=words):
        envs.step(wrong)


class _OnlyDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_arrays_of_other_libraries_are_accepted(envs: Envs) -> None:
    plain = actions(0)
    arrays: list[Any] = [plain.numpy(), plain.double(), plain.tolist(), _OnlyDlpack(plain.numpy())]
    seen: list[torch.Tensor] = []
    for array in (plain, *arrays, plain.clone().requires_grad_()):
        envs.reset(seed=1)
        seen.append(envs.step(array).observations["actor"])
    assert all(torch.equal(one, seen[0]) for one in seen)


BAD_POLICIES: dict[str, tuple[Any, str]] = {
    "raises": (lambda _: 1 // 0, "ZeroDivisionError"),
    "shape": (lambda _: torch.zeros(3, 1), r"policy.*\(3, 1\)"),
    "nothing": (lambda _: None, "NoneType"),
    "nan": (lambda _: torch.full((NUM_ENVS, 1), torch.nan), "policy.*nan"),
}


@pytest.mark.parametrize("name", BAD_POLICIES)
def test_a_failed_rollout_leaves_the_envs_as_they_were(envs: Envs, name: str) -> None:
    bad, words = BAD_POLICIES[name]
    calls = iter(range(10))
    with envs_stay_as_they_were(envs), pytest.raises(UserError, match=words):
        envs.rollout(lambda observations: actions(9) if next(calls) < 2 else bad(observations), 5)


def test_other_calls_are_refused_between_step_async_and_step_wait(envs: Envs) -> None:
    envs.reset(seed=1)
    with pytest.raises(UserError, match="step_async"):
        envs.step_wait()
    envs.step_async(actions(0))
    for call in (envs.reset, envs.state, lambda: envs.step_async(actions(0))):
        with pytest.raises(UserError, match="step_wait"):
            call()
    first = envs.step_wait()
    envs.reset(seed=1)
    assert torch.equal(first.rewards, envs.step(actions(0)).rewards)


def test_another_thread_is_refused_during_a_call(envs: Envs) -> None:
    refused: list[BaseException] = []

    def policy(_: object) -> torch.Tensor:
        def use() -> None:
            try:
                envs.reset()
            except UserError as error:
                refused.append(error)

        other = threading.Thread(target=use)
        other.start()
        other.join()
        return actions(0)

    envs.rollout(policy, 1)
    assert "thread" in str(*refused)


def test_a_forked_process_is_refused(envs: Envs) -> None:
    child = os.fork()
    if child == 0:
        try:
            envs.reset()
        except UserError:
            os._exit(42)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    envs.reset()


def test_closed_envs_are_refused() -> None:
    envs = make()
    envs.close()
    envs.close()
    with pytest.raises(UserError, match="closed"):
        envs.step(actions(0))


@pytest.mark.slow
def test_garbage_collection_frees_the_envs() -> None:
    envs = make()
    shard = weakref.ref(envs._simulator._shard)  # pyright: ignore[reportAttributeAccessIssue]
    del envs
    gc.collect()
    assert shard() is None


def test_numpy_is_returned_on_request() -> None:
    with make(arrays="numpy", final_observations=True) as envs, make() as others:
        step, wanted = envs.step(actions(0).numpy()), others.step(actions(0))
        for array, tensor in (
            (step.observations["actor"], wanted.observations["actor"]),
            (step.rewards, wanted.rewards),
            (step.terminated, wanted.terminated),
            (step.info["final_observations"]["actor"], wanted.observations["actor"]),
        ):
            assert isinstance(array, np.ndarray)
            np.testing.assert_array_equal(array, tensor.numpy())


@pytest.mark.parametrize("fields", [{}, DELAYED], ids=["plain", "with a history and a delay"])
def test_final_observations_equal_those_of_an_episode_that_continues(fields: dict[str, Any]) -> None:
    with make(**SHORT, **fields, final_observations=True) as short, make(**fields) as long:
        assert torch.equal(short.reset(seed=1)["actor"], long.reset(seed=1)["actor"])
        for step in range(20):
            got, wanted = short.step(actions(step)), long.step(actions(step))
            final = got.info["final_observations"]["actor"]
            assert torch.equal(final, wanted.observations["actor"])
            assert torch.equal(got.observations["actor"], final) != bool(got.truncated.any())
            if got.truncated.any():
                assert got.truncated.all()
                assert not got.terminated.any()
                return
    pytest.fail("no episode ended")


@pytest.mark.slow
def test_variants_equal_envs_that_were_made_with_each_variant_alone() -> None:
    heavy = {"env.rewards.smooth.weight": 3.0}
    config = changed(mjlab_dist.task_config(TASK), "env.episode_length_s", 0.2)
    variants = [{}, heavy, dict(SHORT)]
    with make(total_num_envs=12, variants=variants, final_observations=True) as envs:
        results = [envs.reset(seed=2), *(envs.step(actions(step, 4).repeat(3, 1)) for step in range(20))]
        state, after = envs.state(), envs.step(actions(0, 4).repeat(3, 1)).rewards
        envs.set_state(state)
        assert torch.equal(envs.step(actions(0, 4).repeat(3, 1)).rewards, after)
        assert envs.configs[2].env == replaced(config.env, ["sim", "engine"], "warp")
        assert envs.render(11, width=32, height=24).shape == (24, 32, 3)
    for variant, fields in enumerate(variants):
        rows = slice(4 * variant, 4 * variant + 4)
        with make(total_num_envs=4, **fields) as alone:
            assert torch.equal(alone.reset(seed=2)["actor"], results[0]["actor"][rows])
            for step, result in enumerate(results[1:]):
                wanted = alone.step(actions(step, 4))
                assert torch.equal(result.rewards[rows], wanted.rewards)
                assert torch.equal(result.truncated[rows], wanted.truncated)
                assert torch.equal(result.observations["actor"][rows], wanted.observations["actor"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"num_env": 3}, "num_env"),
    "more ranks than envs": ({"cpu_ranks": 2, "total_num_envs": 1}, "--total-num-envs 1"),
    "automatic number": ({"num_envs": "auto"}, "--num-envs auto"),
    "hosts": ({"hosts": ("192.0.2.7", "localhost")}, "put localhost first"),
    "seed": ({"seed": -1}, "--seed -1"),
    "arrays": ({"arrays": "jax"}, "jax"),
    "variants that do not divide": ({"variants": [{}, {}], "total_num_envs": 5}, "--total-num-envs 5"),
    "variants of other sizes": (
        {"variants": [{}, {"env.observations.actor.pole_velocity.history": 2}], "total_num_envs": 4},
        "variants",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_of_make_are_refused(name: str) -> None:
    fields, words = REFUSED[name]
    with pytest.raises(UserError, match=words):
        mjlab_dist.make(TASK, **{"gpu_ids": None, **fields})
