"""The update on one rank equals that of stock rsl_rl. Most tests use fp64, so that rounding hides no differences."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from rollouts import (
    AGENT,
    MINI_BATCHES,
    STEPS,
    Data,
    collect,
    difference,
    make_data,
    make_learner,
    make_stock_learner,
    state_of,
    train_config,
)
from rsl_rl.modules import EmpiricalNormalization
from tensordict import TensorDict

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import RndConfig, SymmetryConfig
from mjlab_dist.distributed.synchronizer import AllReduce
from mjlab_dist.learn.moments import NormalizerMoments, advantage_moments, normalize

NUM_ENVS = 8
MIRROR = "rollouts:mirrored"
NORMALIZED_RND = RndConfig(weight=0.5, num_outputs=4, state_normalization=True, reward_normalization=True)
ITERATIONS = 3


@pytest.fixture
def fp64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(**fields: Any) -> tuple[Any, Any]:
    """Build rsl_rl's stock learner and our learner with the same parameters."""
    config = train_config(dataclasses.replace(AGENT, **fields))
    learners = []
    for make in (make_stock_learner, make_learner):
        torch.manual_seed(0)
        learners.append(make(config, NUM_ENVS))
    return learners[0], learners[1]


def learn(learner: Any, seed: int, data: Data | None = None) -> dict[str, Any]:
    """Learn from data, or else from the data of the seed. Return the losses."""
    collect(learner, data or make_data(NUM_ENVS, seed))
    torch.manual_seed(seed)  # in an update, only the order of samples is random
    return learner.update()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"desired_kl": 1e-4},
        {"schedule": "fixed", "use_clipped_value_loss": False, "max_grad_norm": 0.05},
        {"advantage_normalization": "mini-batch", "activation": "relu"},
        {"advantage_normalization": "rank", "obs_normalization": False},
        {"std_type": "log", "init_std": 0.5},
        {"symmetry": SymmetryConfig(func=MIRROR, use_data_augmentation=True)},
        {"symmetry": SymmetryConfig(func=MIRROR, mirror_loss_coef=0.5), "advantage_normalization": "mini-batch"},
        {"symmetry": SymmetryConfig(func=MIRROR, use_data_augmentation=True, mirror_loss_coef=0.5)},
        {"rnd": RndConfig(weight=0.5), "max_grad_norm": 0.05},
        {"rnd": NORMALIZED_RND},
        pytest.param({"rnn": "lstm"}, marks=pytest.mark.slow),
        pytest.param({"rnn": "gru", "advantage_normalization": "mini-batch"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.usefixtures("fp64")
def test_one_rank_learns_what_stock_rsl_rl_learns(fields: dict[str, Any]) -> None:
    stock, ours = both(**fields)
    assert difference(state_of(ours), state_of(stock))[0] == 0
    for iteration in range(ITERATIONS):
        losses = [learn(learner, iteration) for learner in (stock, ours)]
        largest, where = difference(state_of(ours), state_of(stock))
        assert largest < 1e-9, where
        for name, loss in losses[0].items():
            assert float(losses[1][f"loss/{name}"]) == pytest.approx(loss, rel=1e-9, abs=1e-12)
    if "schedule" not in fields:
        assert stock.learning_rate != AGENT.learning_rate, "else the schedule is not tested"


@pytest.mark.usefixtures("fp64")
def test_random_network_distillation_with_a_recurrent_policy() -> None:
    """Stock rsl_rl also learns from the padding of short episodes. Without ends of episodes, there is none."""
    stock, ours = both(rnn="lstm", rnd=NORMALIZED_RND)
    for iteration in range(ITERATIONS):
        data = make_data(NUM_ENVS, iteration)
        none = torch.zeros_like(data.dones)
        for learner in (stock, ours):
            learn(learner, iteration, dataclasses.replace(data, dones=none, time_outs=none))
        largest, where = difference(state_of(ours), state_of(stock))
        assert largest < 1e-9, where


@pytest.mark.usefixtures("fp64")
def test_normalizers_of_random_network_distillation_stop_when_those_of_stock_rsl_rl_do() -> None:
    stock, ours = both(rnd=NORMALIZED_RND)
    limits = STEPS * NUM_ENVS, (ITERATIONS - 1.5) * STEPS * NUM_ENVS
    for rnd in (stock.rnd, ours.intrinsic.rnd):
        rnd.state_normalizer.until, rnd.reward_normalizer.emp_norm.until = limits
    for iteration in range(ITERATIONS):
        for learner in (stock, ours):
            learn(learner, iteration)
        largest, where = difference(state_of(ours), state_of(stock))
        assert largest < 1e-9, where
    counts = [state_of(ours)[f"rnd.{name}.count"] for name in ("state_normalizer", "reward_normalizer.emp_norm")]
    assert [int(count) for count in counts] == [math.ceil(limit) for limit in limits]


@pytest.mark.usefixtures("fp64")
def test_the_weight_of_the_intrinsic_reward_changes_linearly() -> None:
    stock, ours = both(rnd=RndConfig(weight=0.9, final_weight=0.3))
    for iteration, weight in enumerate((0.9, 0.7, 0.5)):
        stock.rnd.initial_weight = weight
        ours.begin_iteration(iteration + 1, num_iterations=3)
        for learner in (stock, ours):
            learn(learner, iteration)
        assert difference(state_of(ours), state_of(stock))[0] < 1e-9


@pytest.mark.usefixtures("fp64")
@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_normalized_observations_are_clipped(rnn: str) -> None:
    """Both learners learn the same if the test clips the results of the normalizers of stock rsl_rl."""
    clip = 0.8
    stock, ours = both(obs_clip=clip, rnn=rnn)
    sizes = []

    def clipped(_module: Any, _inputs: Any, normalized: torch.Tensor) -> torch.Tensor:
        sizes.append(normalized.abs().max().item())
        return normalized.clamp(-clip, clip)

    for model in (stock.actor, stock.critic):
        model.obs_normalizer.register_forward_hook(clipped)
    for iteration in range(ITERATIONS):
        for learner in (stock, ours):
            learn(learner, iteration)
        largest, where = difference(state_of(ours), state_of(stock))
        assert largest < 1e-9, where
    assert min(sizes) > clip, "else nothing was clipped"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")
def test_an_exported_policy_clips_too() -> None:
    _, ours = both(obs_clip=0.8)
    obs = 100 * make_data(NUM_ENVS, 0).obs["actor"][0]
    assert ours.actor.obs_normalizer(obs).abs().max() == pytest.approx(0.8)
    acted = ours.actor(TensorDict({"actor": obs}, batch_size=[NUM_ENVS]))
    torch.testing.assert_close(torch.jit.script(ours.actor.as_jit())(obs), acted)


@pytest.mark.usefixtures("fp64")
def test_rewards_are_divided_by_the_standard_deviation_of_their_discounted_sums() -> None:
    """Both learners learn the same if the test scales the rewards of stock rsl_rl in NumPy."""
    stock, _ = both()
    _, ours = both(reward_normalization=True)
    discounted, seen = np.zeros(NUM_ENVS), []
    for iteration in range(ITERATIONS):
        data = make_data(NUM_ENVS, iteration)
        for rewards, dones in zip(data.rewards.double().numpy(), data.dones.numpy(), strict=True):
            discounted = AGENT.gamma * discounted + rewards
            seen.append(discounted)
            discounted = np.where(dones, 0.0, discounted)
        scaled = dataclasses.replace(data, rewards=data.rewards.double() / float(np.std(seen)))
        for learner, fed in ((stock, scaled), (ours, data)):
            learn(learner, iteration, fed)
        largest, where = difference(state_of(ours), state_of(stock))
        assert largest < 1e-6, where  # ours adds 1e-8 to the variance
    assert np.std(seen) > 2, "else the scale is hardly tested"


@pytest.mark.parametrize(
    ("fields", "compression"),
    [({"reward_normalization": True}, "none"), ({"rnd": NORMALIZED_RND}, "none"), ({}, "bf16")],
    ids=str,
)
def test_scales_of_rewards_and_errors_of_compression_are_restored(fields: dict[str, Any], compression: str) -> None:
    config = train_config(dataclasses.replace(AGENT, **fields))
    whole, first, second = (make_learner(config, NUM_ENVS, AllReduce(compression)) for _ in range(3))
    first.load(whole.save(), None, True)
    learn(whole, 0)
    learn(first, 0)
    assert ("intrinsic" in first.memory()) == ("rnd" in fields)
    second.load(first.save(), None, True)
    second.load_memory(first.memory())
    learn(whole, 1)
    learn(second, 1)
    assert difference(state_of(second), state_of(whole))[0] == 0


def test_mixed_precision_equals_stock_rsl_rl() -> None:
    """Compare with a tolerance for bf16's rounding.

    Stock rsl_rl collects its rollout in fp32, so the test replaces the results with results in bf16. The learning rate
    is fixed, because small errors can change an adaptive rate by a large factor.
    """
    stock, ours = both(precision="bf16", schedule="fixed")
    _, full = both(schedule="fixed")
    for learner in (stock, ours, full):
        collect(learner, make_data(NUM_ENVS, 0))
        if learner is stock:
            round_rollout(stock)
        torch.manual_seed(0)
        learner.update()
    theirs, mine, exact = (torch.cat([p.detach().flatten() for p in x.actor.parameters()]) for x in (stock, ours, full))
    assert (mine - theirs).norm() < 0.5 * (theirs - exact).norm()
    assert (mine - exact).norm() > 1e-3, "else nothing was computed in bf16"
    assert all(p.dtype == torch.float32 for p in ours.actor.parameters())


def round_rollout(learner: Any) -> None:
    """Compute the results of a rollout again in bf16, and replace those in fp32."""
    storage = learner.storage
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for step in range(STEPS):
            obs = storage.observations[step]
            learner.actor(obs, stochastic_output=True)
            storage.actions_log_prob[step] = learner.actor.get_output_log_prob(storage.actions[step]).unsqueeze(-1)
            for stored, new in zip(storage.distribution_params, learner.actor.output_distribution_params, strict=True):
                stored[step] = new
            storage.values[step] = learner.critic(obs)


def test_the_old_policy_of_mixed_precision_stays_the_same_during_the_update() -> None:
    """Otherwise, the KL divergence leaves out the change of the standard deviation."""
    _, ours = both(precision="bf16", schedule="fixed")
    collect(ours, make_data(NUM_ENVS, 0))
    before, batches = ours.actor.distribution.std_param.detach().clone(), ours._mini_batches()
    with mock.patch.object(ours, "_mini_batches", return_value=batches):
        ours.update()
    assert not torch.equal(ours.actor.distribution.std_param, before)
    for batch in batches:
        assert torch.equal(batch.old_distribution_params[1], before.expand(len(batch.actions), -1))


@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_mixed_precision_is_not_measured_as_a_change_of_the_policy(rnn: str) -> None:
    """Without a step of the optimizer, the policy's KL divergence from itself is 0, and nothing is clipped."""
    losses: list[dict[str, float]] = []
    for clips in (True, False):
        fields = {"rnn": rnn, "learning_rate": 0.0, "init_std": 0.02, "use_clipped_value_loss": clips}
        _, ours = both(precision="bf16", schedule="fixed", **fields)
        with torch.no_grad():
            # bf16 rounds values near 300 by up to 1. If this counted as a change, it would exceed the clip range of 0.2
            ours.critic.mlp[-1].bias.fill_(300.0)
        losses.append({name: loss.item() for name, loss in learn(ours, 0).items()})
    for measured in losses:
        assert measured["kl"] == 0
        assert measured["loss/surrogate"] == pytest.approx(0, abs=1e-6), (
            "if every ratio is 1, this loss is the negative mean of normalized advantages, which is 0"
        )
    assert losses[0]["loss/value"] == losses[1]["loss/value"]


@pytest.mark.usefixtures("fp64")
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (1, 1)], ids=["stock to us", "us to stock", "us to us"])
def test_checkpoints_are_compatible_with_stock_rsl_rl(source: int, target: int) -> None:
    fields = {"rnd": RndConfig(weight=0.5, state_normalization=True)}
    learner = both(**fields)[source]
    learn(learner, 0)
    torch.manual_seed(99)
    config = train_config(dataclasses.replace(AGENT, **fields))
    other = (make_stock_learner, make_learner)[target](config, NUM_ENVS)
    saved = copy.deepcopy(learner.save())
    (group,) = saved["optimizer_state_dict"]["param_groups"]
    assert (type(group["lr"]), group["fused"], group["capturable"]) == (float, None, False), "as in stock rsl_rl"
    assert other.load(saved, None, True)
    assert difference(state_of(other), state_of(learner))[0] == 0
    # A loaded learner continues in the same way as the saved one.
    learn(learner, 1)
    learn(other, 1)
    assert difference(state_of(other), state_of(learner))[0] < 1e-9


def test_an_update_never_waits_for_the_device() -> None:
    stock, ours = both(rnd=NORMALIZED_RND, symmetry=SymmetryConfig(func=MIRROR, use_data_augmentation=True))
    counts = []
    for learner in (stock, ours):
        collect(learner, make_data(NUM_ENVS, 0))
        with HostSyncs(indices=False) as waits:
            learner.update()
        counts.append(len(waits.found))
    assert counts[0] > AGENT.num_learning_epochs * MINI_BATCHES, "waits of stock rsl_rl were not counted"
    assert counts[1] == 0


def test_advantages_are_normalized_by_moments_that_add_up() -> None:
    values = 5 + 3 * torch.randn(2, 1000)
    parts = values.split([100, 900], dim=1)
    together = sum(advantage_moments(p) for p in parts)
    assert isinstance(together, torch.Tensor)
    done = torch.cat([normalize(p, together) for p in parts], dim=1)
    expected = (values - values.mean(dim=1, keepdim=True)) / (values.std(dim=1, keepdim=True) + 1e-8)
    torch.testing.assert_close(done, expected)


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_normalizer_merges_deltas(mean: float) -> None:
    shared, alone = EmpiricalNormalization(4), EmpiricalNormalization(4)
    moments = NormalizerMoments(shared, ["actor"])
    for size in (10, 300, 50):
        batch = mean + torch.randn(size, 4)
        alone.update(batch)
        parts = [NormalizerMoments(shared, ["actor"]) for _ in range(2)]
        for part, rows in zip(parts, batch.split([size // 5, size - size // 5]), strict=True):
            part.observe(TensorDict({"actor": rows}, batch_size=[len(rows)]))
        moments.rebase()
        moments.pending = parts[0].pending + parts[1].pending
        moments.apply()
        here, expected = shared.state_dict(), alone.state_dict()
        assert here["count"] == expected["count"]
        torch.testing.assert_close(here["_mean"], expected["_mean"])
        torch.testing.assert_close(here["_var"], expected["_var"], rtol=2e-3, atol=0)


@pytest.mark.usefixtures("fp64")
@pytest.mark.parametrize("rnn", ["none", "lstm"])
def test_orthogonal_weights_at_the_start(rnn: str) -> None:
    stock, ours = both(orthogonal_init=True, rnn=rnn)
    assert sum(p.numel() for p in stock.actor.parameters()) == sum(p.numel() for p in ours.actor.parameters())
    for model, last_gain in ((ours.actor, 0.01), (ours.critic, 1.0)):
        layers = [layer for layer in model.mlp if isinstance(layer, torch.nn.Linear)]
        for layer, gain in zip(layers, [2**0.5, 2**0.5, last_gain], strict=True):
            weight = layer.weight.detach()
            short = weight if len(weight) <= weight.shape[1] else weight.T
            torch.testing.assert_close(short @ short.T, gain**2 * torch.eye(len(short)), rtol=0, atol=1e-12)
            assert not layer.bias.any()
    # Without the flag, the initialization is torch's, as in rsl_rl.
    assert any(layer.bias.any() for layer in stock.actor.mlp if isinstance(layer, torch.nn.Linear))
