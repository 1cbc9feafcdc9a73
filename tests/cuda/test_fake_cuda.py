"""The code for CUDA on fake CUDA tensors: nothing waits for the device, and no operation mixes devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_task import NAMES
from fake_cuda import DEVICE, HostReadsAllowed, fake_cuda, never_waits, on_fake_cuda
from rollouts import (
    AGENT,
    MINI_BATCHES,
    NUM_ACTIONS,
    NUM_OBS,
    STEPS,
    Data,
    collect,
    collect_for_sac,
    make_learner,
    make_sac,
    sac_config,
    train_config,
)
from rsl_rl.storage import RolloutStorage
from torch.testing._internal.distributed.fake_pg import FakeStore

from mjlab_dist.config import RndConfig, SymmetryConfig
from mjlab_dist.distributed.synchronizer import AllReduce
from mjlab_dist.env import Env
from mjlab_dist.learn.finite import FiniteCheck
from mjlab_dist.learn.sac import sac

NUM_ENVS = 8

UPDATES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "clipped observations": {"obs_clip": 5.0},
    "raw observations": {"obs_normalization": False},
    "scaled rewards": {"reward_normalization": True},
    "mirrored samples": {"symmetry": SymmetryConfig(func="rollouts:mirrored", use_data_augmentation=True)},
    "mirror loss": {"symmetry": SymmetryConfig(func="rollouts:mirrored", mirror_loss_coef=1.0)},
    "intrinsic reward": {"rnd": RndConfig(weight=1.0, state_normalization=True, reward_normalization=True)},
    "advantages of a rank": {"advantage_normalization": "rank"},
    "advantages of a mini-batch": {"advantage_normalization": "mini-batch"},
    "orthogonal weights": {"orthogonal_init": True},
    "linear schedule": {"schedule": "linear"},
    "fixed schedule": {"schedule": "fixed"},
}
"""Variants of the update, each with the fields of the agent's config that select it."""


# The env


@pytest.mark.slow
@pytest.mark.parametrize("task", NAMES)
def test_an_env_stays_on_the_device(task: str, build_env: Callable[[str], Env]) -> None:
    real = build_env(task)
    with fake_cuda(), torch.inference_mode():
        env = on_fake_cuda(real)
        with never_waits() as syncs:
            for nan_policy in ("stop", "reset"):
                env.cfg = dataclasses.replace(env.cfg, nan_policy=nan_policy)
                obs, rewards, dones, extras = env.step(torch.zeros(env.num_envs, env.num_actions, device=DEVICE))
            totals = env.pop_episode_totals()
            env.end_iteration(totals)
            resets = env.pop_nan_resets()
            measured = env.curriculum_metrics()
            env.stagger()
            first = env.reset()
    tensors = [*obs.values(), *first.values(), *extras.values(), *totals, *measured.values(), rewards, dones, resets]
    assert {str(tensor.device) for tensor in tensors} == {DEVICE}
    assert syncs.num_ops > 50


@pytest.mark.parametrize("task", NAMES)
def test_the_search_for_numbers_that_are_not_finite_stays_on_the_device(
    task: str, build_env: Callable[[str], Env]
) -> None:
    real = build_env(task)
    with fake_cuda(), torch.inference_mode():
        env = on_fake_cuda(real)
        obs = env.reset()
        storage = RolloutStorage("rl", env.num_envs, STEPS, obs, [env.num_actions], DEVICE)
        check = FiniteCheck(env, storage)
        with never_waits():
            check.record(0)
            count = check.count(obs)
    assert str(count.device) == DEVICE


def _writes_by_mask(env: Env) -> torch.Tensor:
    reward = env.actions.sum(dim=1)
    reward[env.terminated] = torch.zeros(1, device=env.device)
    return reward


@pytest.mark.parametrize(
    ("reward", "operation"),
    [
        (lambda env: env.actions.sum(dim=1) * env.actions.sum().item(), "_local_scalar_dense"),
        (lambda env: env.actions.sum(dim=1) if env.terminated.any() else 0.0, "_local_scalar_dense"),
        (lambda env: env.actions.sum(dim=1).index_fill(0, env.terminated.nonzero().squeeze(1), 0.0), "nonzero"),
        (lambda env: env.actions.sum(dim=1) - env.actions[env.terminated].sum(), "nonzero"),
        (_writes_by_mask, "index_put_"),
        (lambda env: env.actions.sum(dim=1) + torch.ones(env.num_envs), "device"),
        (lambda env: env.actions.cpu().sum(dim=1).to(DEVICE), "_to_copy"),
        (lambda env: torch.empty(env.num_envs, device=DEVICE).copy_(torch.zeros(env.num_envs)), "copy_"),
        (lambda env: env.actions.sum(dim=1) * torch.equal(env.actions, env.previous_actions), "equal"),
    ],
)
def test_a_wrong_reward_is_found(
    reward: Callable[[Env], torch.Tensor], operation: str, build_env: Callable[[str], Env]
) -> None:
    """Rewards that make the host wait for a GPU, or that mix devices."""
    real = build_env("cartpole-balance")
    with fake_cuda(), torch.inference_mode():
        env = on_fake_cuda(real)
        env._rewards[0] = reward
        with pytest.raises((AssertionError, RuntimeError), match=operation), never_waits():
            env.step(torch.zeros(env.num_envs, env.num_actions, device=DEVICE))


def test_a_copy_for_fake_cuda_does_not_change_the_env(build_env: Callable[[str], Env]) -> None:
    real = build_env("cartpole-balance")
    before = real.state()
    with fake_cuda(), torch.inference_mode():
        on_fake_cuda(real).reset()
    assert real.device == real.sim.device == "cpu"
    assert all(torch.equal(tensor, before[name]) for name, tensor in real.state().items())


# The learner


@pytest.fixture
def two_ranks() -> Iterator[None]:
    """Torch's fake process group for tests. Its collective operations return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", UPDATES)
def test_an_update_stays_on_the_device(name: str) -> None:
    _update(UPDATES[name])


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("name", ["fp32", "scaled rewards", "advantages of a rank", "raw observations"])
def test_an_update_of_two_ranks_stays_on_the_device(name: str) -> None:
    _update(UPDATES[name])


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("compression", ["bf16", "fp16"])
def test_gradients_are_compressed_on_the_device(compression: str) -> None:
    _update({}, synchronizer=AllReduce(compression))


@pytest.mark.parametrize("read", [lambda loss: loss.item(), lambda loss: loss.cpu()])
def test_an_update_that_reads_its_loss_is_found(
    read: Callable[[torch.Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllReduce, "reduce", lambda _, gradients: read(gradients.sum()))
    with pytest.raises((AssertionError, RuntimeError), match=r"_local_scalar_dense|_to_copy"):
        _update({})


def _update(fields: dict[str, Any], synchronizer: AllReduce | None = None) -> None:
    """Collect a rollout and update the learner, on fake CUDA."""
    config = train_config(dataclasses.replace(AGENT, capture=False, num_learning_epochs=2, **fields))
    with fake_cuda():
        with HostReadsAllowed(), torch.device(DEVICE):
            learner = make_learner(config, NUM_ENVS, synchronizer, DEVICE)
        with never_waits(indices=False) as syncs:
            if learner.schedule == "linear":
                learner.learning_rate = 1e-3
            collect(learner, _data())
            losses = learner.update()
    assert {str(loss.device) for loss in losses.values()} == {DEVICE}
    assert syncs.num_ops > 2 * MINI_BATCHES * 20


def test_soft_actor_critic_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sac, "free_bytes", lambda _: 10**9)
    with fake_cuda():
        with HostReadsAllowed(), torch.device(DEVICE):
            learner = make_sac(sac_config(), NUM_ENVS, device=DEVICE)
        with never_waits(indices=False) as syncs:
            found = []
            for _ in range(2):
                learner.begin_iteration(1, 1)
                collect_for_sac(learner, _data())
                found += learner.update().values()
    assert {str(value.device) for value in found} == {DEVICE}
    assert syncs.num_ops > 2 * 6 * 100


def _data() -> Data:
    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device=DEVICE)

    return Data(
        obs={name: zeros(STEPS + 1, NUM_ENVS, width) for name, width in NUM_OBS.items()},
        noise=zeros(STEPS, NUM_ENVS, NUM_ACTIONS),
        rewards=zeros(STEPS, NUM_ENVS),
        dones=zeros(STEPS, NUM_ENVS, dtype=torch.bool),
        time_outs=zeros(STEPS, NUM_ENVS, dtype=torch.bool),
    )
