"""Soft actor-critic with real envs: final observations, checkpoints, memory, and a policy that learns."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from rollouts import collect_for_sac, difference, make_data, make_sac, sac_config

from mjlab_dist.config import registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.distributed import Rank
from mjlab_dist.distributed.rank import seed_generators
from mjlab_dist.distributed.synchronizer import AllReduce
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.learn.learner import flatten
from mjlab_dist.learn.sac.replay import NEXT
from mjlab_dist.learn.sac.sac import COLUMNS, POLICY_COLUMNS, SAC

NUM_ENVS = 8


def test_a_loaded_learner_continues_like_the_saved_one() -> None:
    learner, other = (make_sac(sac_config(), NUM_ENVS) for _ in range(2))
    for seed in range(2):
        collect_for_sac(learner, make_data(NUM_ENVS, seed))
        learner.update()
    other.load(copy.deepcopy(learner.save()), None, strict=True)
    assert other.load_history(learner.history(), continues=True) == ""
    for one in (learner, other):
        collect_for_sac(one, make_data(NUM_ENVS, 2))
    losses = [one.update() for one in (learner, other)]
    assert losses[0] == losses[1]
    assert difference(flatten(learner.save()), flatten(other.save()))[0] == 0
    # A policy and critics of another run: the targets start from the critics, and Adam from zero
    third = make_sac(sac_config(), NUM_ENVS)
    third.load(learner.save(), {"actor": True, "critic": True}, strict=True)
    third_state, state = flatten(third.save()), flatten(learner.save())
    for name, tensor in third.network_state("target").items():
        assert torch.equal(tensor, state[f"critic.{name}"])
    assert torch.equal(third_state["actor.mlp.0.weight"], state["actor.mlp.0.weight"])
    assert third.load_history({}, continues=False)


def test_the_policy_changes_in_every_nth_gradient_step() -> None:
    learner = make_sac(sac_config(updates_per_step=1 / 12, policy_period=3), NUM_ENVS)
    changed = []
    for seed in range(7):
        collect_for_sac(learner, make_data(NUM_ENVS, seed))
        before = flatten(copy.deepcopy(learner.save()))
        metrics = learner.update()
        after = flatten(learner.save())
        assert not torch.equal(before["critic.weights.0"], after["critic.weights.0"])
        changed.append(not torch.equal(before["actor.mlp.0.weight"], after["actor.mlp.0.weight"]))
        assert changed[-1] == (before["temperature.log"] != after["temperature.log"])
        assert changed[-1] == (metrics["loss/actor"] != 0)
    assert changed == [True, False, False, True, False, False, True]


def test_targets_follow_and_the_temperature_seeks_the_entropy() -> None:
    learner = make_sac(sac_config(tau=1.0, target_entropy_scale=-10.0), NUM_ENVS)
    collect_for_sac(learner, make_data(NUM_ENVS, 0))
    metrics = [learner.update()]
    for seed in range(1, 4):
        collect_for_sac(learner, make_data(NUM_ENVS, seed))
        metrics.append(learner.update())
    state = flatten(learner.save())
    for name, _ in learner.networks["critic"].named_parameters():
        assert torch.equal(state[f"target.{name}"], state[f"critic.{name}"])
    assert not learner._target_values.requires_grad, "no graph grows from step to step"
    temperatures = [row["temperature"].item() for row in metrics]
    assert temperatures == sorted(temperatures), "no policy reaches this entropy, so the temperature grows"
    assert temperatures[-1] > 0.1


@pytest.mark.parametrize(("schedule", "rates"), [("fixed", [8e-4] * 4), ("linear", [8e-4, 6e-4, 4e-4, 2e-4])])
def test_the_learning_rate_follows_its_schedule(schedule: str, rates: list[float]) -> None:
    learner = make_sac(sac_config(learning_rate=8e-4, schedule=schedule), NUM_ENVS)
    for iteration, rate in enumerate(rates, start=1):
        learner.begin_iteration(iteration, len(rates))
        assert learner.optimizer.param_groups[0]["lr"].item() == pytest.approx(rate)


def test_nothing_is_learned_before_the_warm_up() -> None:
    learner = make_sac(sac_config(warmup_steps=13), NUM_ENVS)
    before = flatten(learner.save())
    collect_for_sac(learner, make_data(NUM_ENVS, 0))
    assert {name: value.item() for name, value in learner.update().items()} == dict.fromkeys(
        [*COLUMNS, *POLICY_COLUMNS], 0.0
    )
    after = flatten(learner.save())
    assert [name for name in after if "normalizer" not in name and not torch.equal(before[name], after[name])] == []
    assert after["actor.obs_normalizer.count"] == 12 * NUM_ENVS
    collect_for_sac(learner, make_data(NUM_ENVS, 1))
    assert learner.update()["loss/critic"] > 0


@pytest.mark.slow
def test_time_outs_are_followed_by_their_final_observations() -> None:
    """A twin of the envs with a longer time limit goes on where the envs are reset."""
    config = with_values(
        registry.task_config("cartpole-balance", "sac"),
        {"num_envs": 4, "env.episode_length_s": 0.2, "agent.num_steps_per_env": 15, "agent.replay_size": 4 * 40},
    )
    made: list[Any] = []
    for env_config in (config.env, dataclasses.replace(config.env, episode_length_s=100.0)):
        seed_generators(1)
        made.append(Env(env_config, 4, "cpu"))
    env, twin = made
    learner, obs = SAC(config, env, AllReduce(), Rank()), env.get_observations()
    assert torch.equal(obs["actor"], twin.get_observations()["actor"])
    limit = env.max_episode_length
    assert 15 < limit < 30
    followed = []
    for _ in range(2):
        for _ in range(15):
            actions = learner.act(obs)
            obs, rewards, dones, extras = env.step(actions)
            learner.process_env_step(obs, rewards, dones, extras)
            if len(followed) < limit:
                followed.append(twin.step(actions)[0]["actor"].clone())
        learner.compute_returns(obs)
        learner.storage.clear()
    rows = learner.history()
    assert torch.equal(rows[f"{NEXT}actor"][:limit], torch.stack(followed))
    # Each observation is the next one of the step before, except at the reset
    same = (rows["actor"][1:] == rows[f"{NEXT}actor"][:-1]).all(dim=2).all(dim=1)
    assert (~same).nonzero().flatten().tolist() == [limit - 1]
    assert rows["dones"].nonzero()[:, 0].tolist() == [limit - 1] * 4
    assert not rows["terminated"].any()


@pytest.mark.slow
def test_a_replay_that_does_not_fit_is_refused() -> None:
    config = with_values(registry.task_config("cartpole-balance", "sac"), {"num_envs": 4, "agent.replay_size": 10**12})
    with pytest.raises(UserError, match=r"^--agent\.replay-size 1000000000000: .* GB"):
        SAC(config, Env(config.env, 4, "cpu"), AllReduce(), Rank())


@pytest.mark.slow
@pytest.mark.parametrize("task", registry.task_names())
def test_every_task_can_learn(task: str) -> None:
    small = {"agent.num_steps_per_env": 4, "agent.warmup_steps": 4, "agent.batch_size": 8, "agent.replay_size": 64}
    config = with_values(registry.task_config(task, "sac"), small)
    env = Env(config.env, 2, "cpu")
    learner, obs = SAC(config, env, AllReduce(), Rank()), env.get_observations()
    learner.begin_iteration(1, 1)
    for _ in range(4):
        obs, rewards, dones, extras = env.step(learner.act(obs))
        learner.process_env_step(obs, rewards, dones, extras)
    learner.compute_returns(obs)
    assert all(value.isfinite() for value in learner.update().values())
    actions = learner.history()["actions"]
    assert actions.abs().max() <= 1
    assert actions.std() > 0.2
