"""The losses of soft actor-critic equal those that Stable-Baselines3 computes for the same networks and batch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from rollouts import NUM_ACTIONS, NUM_OBS, make_sac, sac_config
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from mjlab_dist.learn.sac.losses import critic_loss
from mjlab_dist.learn.sac.replay import Batch
from mjlab_dist.learn.sac.sac import COLUMNS, POLICY_COLUMNS, SAC

NUM_SAMPLES = 64
GAMMA = 0.97
WIDTHS = (32, 16)


class Space(gymnasium.Env[Any, Any]):
    """Only the spaces of an env."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (NUM_OBS["actor"],))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_ACTIONS,))


@pytest.fixture
def learner() -> SAC:
    torch.manual_seed(0)
    agent = sac_config(
        layer_norm=False, obs_normalization=False, actor_hidden_dims=WIDTHS, critic_hidden_dims=WIDTHS, temperature=0.3
    )
    return make_sac(agent, 8, groups=("actor",))


def stock(learner: SAC) -> stable_baselines3.SAC:
    """Return Stable-Baselines3's SAC with the networks of ours, and with learning rates of 0."""
    made = stable_baselines3.SAC(
        "MlpPolicy",
        Space(),
        learning_rate=0.0,
        gamma=GAMMA,
        ent_coef="auto_0.3",
        policy_kwargs={"net_arch": list(WIDTHS)},
        device="cpu",
    )
    weights = learner.network_state("actor")
    with torch.no_grad():
        last = {name: weights[f"mlp.4.{name}"].chunk(2) for name in ("weight", "bias")}
        for name in ("weight", "bias"):
            for layer in (0, 2):
                made.actor.latent_pi.get_parameter(f"{layer}.{name}").copy_(weights[f"mlp.{layer}.{name}"])
            for part, network in zip(last[name], (made.actor.mu, made.actor.log_std), strict=True):
                getattr(network, name).copy_(part)
        for ours, theirs in (
            (learner.networks["critic"], made.critic),
            (learner.networks["target"], made.critic_target),
        ):
            parameters = dict(ours.named_parameters())
            for i, network in enumerate(theirs.q_networks):
                for layer in range(3):
                    network.get_parameter(f"{2 * layer}.weight").copy_(parameters[f"weights.{layer}"][i].T)
                    network.get_parameter(f"{2 * layer}.bias").copy_(parameters[f"biases.{layer}"][i, 0])
    return made


def test_losses_equal_those_of_stable_baselines3(learner: SAC) -> None:
    # The target critics differ from the critics
    with torch.no_grad():
        for parameter in learner.networks["target"].parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    obs, next_obs = torch.randn(2, NUM_SAMPLES, NUM_OBS["actor"])
    actions, rewards = torch.rand(NUM_SAMPLES, NUM_ACTIONS) * 2 - 1, torch.randn(NUM_SAMPLES)
    terminated = torch.rand(NUM_SAMPLES) < 0.3
    # Stock
    other = stock(learner)
    samples = ReplayBufferSamples(obs, actions, next_obs, terminated.float()[:, None], rewards[:, None])
    logged: dict[str, float] = {}
    other._logger = SimpleNamespace(record=lambda name, value, **_: logged.__setitem__(name, float(value)))  # pyright: ignore[reportAttributeAccessIssue]
    other.replay_buffer = mock.Mock(sample=lambda *_, **__: samples)
    other.actor.action_dist.epsilon = 0.0  # the number that Stable-Baselines3 adds before a logarithm
    torch.manual_seed(1)
    other.train(gradient_steps=1, batch_size=NUM_SAMPLES)
    # Ours, with the same random numbers
    torch.manual_seed(1)
    shape = (NUM_SAMPLES, NUM_ACTIONS)
    noise, next_noise = (torch.normal(torch.zeros(shape), torch.ones(shape)) for _ in range(2))
    learner._step(
        Batch({"actor": obs}, actions, rewards, {"actor": next_obs}, GAMMA * (~terminated).float()), noise, next_noise
    )
    totals = [*learner._totals.tolist(), *learner._policy_totals.tolist()]
    ours = dict(zip([*COLUMNS, *POLICY_COLUMNS], totals, strict=True))
    assert ours["loss/critic"] == pytest.approx(logged["train/critic_loss"], rel=1e-6)
    assert ours["loss/actor"] == pytest.approx(logged["train/actor_loss"], rel=1e-6)
    assert ours["loss/temperature"] == pytest.approx(logged["train/ent_coef_loss"], rel=1e-6)
    assert ours["temperature"] == pytest.approx(logged["train/ent_coef"], rel=1e-6)


def test_several_outputs_become_quantiles_of_the_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    # Skewed, and so wide that errors are far from where Huber's loss is quadratic
    targets = 1000.0 * torch.rand(2000, 4, generator=generator).square()
    learned = torch.zeros(2, 1, 4, requires_grad=True)
    optimizer = torch.optim.Adam([learned], lr=5.0)
    for _ in range(400):
        optimizer.zero_grad()
        critic_loss(learned.expand(2, 2000, 4), targets).backward()
        optimizer.step()
    expected = targets.flatten().quantile(torch.tensor([0.125, 0.375, 0.625, 0.875]))
    for critic in learned.detach().squeeze(1):
        torch.testing.assert_close(critic, expected, rtol=0.05, atol=10.0)
