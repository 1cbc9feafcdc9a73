"""Networks of SAC: densities of squashed actions, twin critics, and ranges of actions."""

from __future__ import annotations

import pytest
import torch
from rollouts import NUM_ACTIONS, NUM_OBS, sac_config, zeros
from tensordict import TensorDict
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from mjlab_dist.config import registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.env import Env
from mjlab_dist.learn.sac.actor_critic import SquashedGaussian, TwinCritics, make_actor
from mjlab_dist.learn.sac.ranges import action_ranges


def test_densities_equal_those_of_torch() -> None:
    gaussian = SquashedGaussian(3)
    outputs, normals = torch.rand(50, 6, dtype=torch.float64), torch.randn(50, 3, dtype=torch.float64)
    gaussian.update(outputs)
    actions, log_prob = gaussian.draw(normals)
    mean, log_std = outputs.chunk(2, dim=-1)
    expected = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform())
    torch.testing.assert_close(actions, torch.tanh(mean + log_std.exp() * normals))
    torch.testing.assert_close(log_prob, expected.log_prob(actions).sum(dim=-1))
    # Where tanh rounds to 1
    gaussian.update(torch.tensor([[40.0, 0.0, 0.0, -5.0, -5.0, -5.0]]))
    assert gaussian.draw(torch.zeros(1, 3))[1].isfinite().all()


def test_samples_and_exported_means_are_in_the_range() -> None:
    gaussian = SquashedGaussian(2)
    gaussian.center.copy_(torch.tensor([1.0, -3.0]))
    gaussian.half_range.copy_(torch.tensor([0.5, 2.0]))
    outputs = 5.0 * torch.randn(1000, 4)
    gaussian.update(outputs)
    means = gaussian.deterministic_output(outputs)
    for actions in (gaussian.sample(), means):
        assert (actions.amin(dim=0) >= torch.tensor([0.5, -5.0])).all()
        assert (actions.amax(dim=0) <= torch.tensor([1.5, -1.0])).all()
        assert (actions.std(dim=0) > torch.tensor([0.2, 0.8])).all()
    assert torch.equal(gaussian.as_deterministic_output_module()(outputs), means)


@pytest.mark.parametrize(("layer_norm", "num_quantiles"), [(False, 1), (True, 3)])
def test_critics_equal_two_separate_networks(layer_norm: bool, num_quantiles: int) -> None:
    torch.manual_seed(0)
    config = sac_config(layer_norm=layer_norm, obs_normalization=False, num_quantiles=num_quantiles)
    critics = TwinCritics(config, zeros(1), NUM_ACTIONS)
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    obs = TensorDict({name: torch.randn(20, width) for name, width in NUM_OBS.items()}, batch_size=[20])
    actions = torch.randn(20, NUM_ACTIONS, requires_grad=True)
    values = critics(critics.get_latent(obs), actions)
    for i, found in enumerate(values):
        x = torch.cat([obs["critic"], actions], dim=-1)
        for layer, (weight, bias) in enumerate(zip(critics.weights, critics.biases, strict=True)):
            x = torch.nn.functional.linear(x, weight[i].T, bias[i, 0])
            if layer < 2:
                if layer_norm:
                    gain, shift = critics.gains[layer][i, 0], critics.shifts[layer][i, 0]
                    x = torch.nn.functional.layer_norm(x, x.shape[-1:], gain, shift)
                x = x.relu()
        torch.testing.assert_close(found, x)
    # Gradients for the policy reach the actions, and not the parameters of the critics
    critics(critics.get_latent(obs), actions, learns=False).sum().backward()
    assert actions.grad is not None
    assert actions.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_each_hidden_layer_of_the_policy_is_normalized() -> None:
    kinds = {
        normalized: [
            type(layer).__name__ for layer in make_actor(sac_config(layer_norm=normalized), zeros(1), 3, "cpu").mlp
        ]
        for normalized in (False, True)
    }
    assert kinds[False] == ["Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert kinds[True] == ["Linear", "LayerNorm", "ReLU", "Linear", "LayerNorm", "ReLU", "Linear"]


@pytest.mark.slow
def test_ranges_of_actions() -> None:
    def ranges(task: str, **values: object) -> tuple[Env, torch.Tensor, torch.Tensor]:
        env = Env(with_values(registry.task_config(task), values).env, 1, "cpu")
        return env, *action_ranges(env)

    # clip
    _, center, half_range = ranges("gym-humanoid")
    assert torch.equal(center, torch.zeros(17))
    assert torch.equal(half_range, torch.full((17,), 0.4))
    # Position motors: from the start pose to the farther limit of the joint
    env, center, half_range = ranges("quadruped-velocity-flat")
    assert torch.equal(center, torch.zeros(12))
    (term,) = env.action_terms
    targets = torch.stack([term.offset - half_range * term.scale, term.offset + half_range * term.scale])
    for name, (low, high) in zip(env.action_names, targets.T, strict=True):
        joint = env.sim.model.joint(env.sim.model.actuator(name).trnid[0])
        home, reach = 0.5 * (low + high).item(), 0.5 * (high - low).item()
        assert home == pytest.approx(env.sim.model.key("home").qpos[joint.qposadr[0]])
        lower, upper = joint.range
        assert reach == pytest.approx(min(max(upper - home, home - lower), 10.0 * 0.25)), "10 is the block's clip"
    # Range of the actuator's input
    env, center, half_range = ranges("cartpole-balance")
    (term,) = env.action_terms
    ends = torch.cat([center - half_range, center + half_range]) * term.scale + term.offset
    torch.testing.assert_close(ends, torch.tensor(env.sim.model.actuator_ctrlrange[0], dtype=torch.float32))
