"""Networks of soft actor-critic: rsl_rl's MLP as the policy, with a squashed Gaussian, and twin critics."""

from __future__ import annotations

import itertools
import math

import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules.distribution import Distribution
from rsl_rl.utils import resolve_nn_activation
from tensordict import TensorDict
from torch import nn
from torch.nn import functional

from mjlab_dist.config import SacConfig

# Range of the logarithm of the standard deviation, before actions are squashed; the upper bound is Stable-Baselines3's
LOG_STD_RANGE = (-5.0, 2.0)


class SquashedGaussian(Distribution):
    """Gaussian whose samples a tanh maps to the range of the actions: center - half_range to center + half_range.

    The network returns means and logarithms of standard deviations of the numbers before the tanh, (num_envs, 2 *
    output_dim). Log-probabilities are those of the result of the tanh, which is in (-1, 1), so that the entropy does
    not depend on the unit of the actions.
    """

    center: torch.Tensor
    half_range: torch.Tensor

    def __init__(self, output_dim: int) -> None:
        """Create the range, from -1 to 1 until it is set."""
        super().__init__(output_dim)
        self.register_buffer("center", torch.zeros(output_dim))
        self.register_buffer("half_range", torch.ones(output_dim))

    @property
    def input_dim(self) -> int:
        """Width of the network's output."""
        return 2 * self.output_dim

    def update(self, mlp_output: torch.Tensor) -> None:
        """Set mean and standard deviation."""
        self._mean, log_std = mlp_output.chunk(2, dim=-1)
        self._log_std = log_std.clamp(*LOG_STD_RANGE)
        self._std = self._log_std.exp()

    def draw(self, normals: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return squashed samples in (-1, 1), (num_envs, output_dim), and their log-probabilities, (num_envs,).

        Args:
            normals: Standard normal numbers, (num_envs, output_dim).
        """
        numbers = self._mean + self._std * normals
        # 1 - tanh(x)^2 = 4 / (exp(x) + exp(-x))^2
        log_prob = (2.0 * torch.logaddexp(numbers, -numbers) - self._log_std).sum(dim=-1)
        constant = 0.5 * (normals.square() + math.log(32.0 * math.pi)).sum(dim=-1)
        return numbers.tanh(), log_prob - constant

    @torch.no_grad()
    def sample(self) -> torch.Tensor:
        """Draw actions, (num_envs, output_dim)."""
        # torch.normal would wait for the device, and raise if numbers are not finite
        numbers = self._mean + self._std * torch.randn_like(self._mean)
        return self.center + self.half_range * numbers.tanh()

    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        """Return the squashed mean, (num_envs, output_dim)."""
        return self.center + self.half_range * mlp_output[..., : self.output_dim].tanh()

    def as_deterministic_output_module(self) -> nn.Module:
        """Return :meth:`deterministic_output` as a module, for export."""
        return _SquashedMean(self.center, self.half_range)

    @property
    def std(self) -> torch.Tensor:
        """Standard deviation before the tanh, (num_envs, output_dim)."""
        return self._std


class _SquashedMean(nn.Module):
    center: torch.Tensor
    half_range: torch.Tensor

    def __init__(self, center: torch.Tensor, half_range: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("center", center.clone())
        self.register_buffer("half_range", half_range.clone())

    def forward(self, mlp_output: torch.Tensor) -> torch.Tensor:
        return self.center + self.half_range * mlp_output[..., : self.center.shape[0]].tanh()


def make_actor(config: SacConfig, obs: TensorDict, num_actions: int, device: str) -> MLPModel:
    """Build the policy, which reads the observation group ``actor``."""
    actor = MLPModel(
        obs,
        {"actor": ["actor"]},
        "actor",
        num_actions,
        config.actor_hidden_dims,
        config.activation,
        config.obs_normalization,
        {"class_name": SquashedGaussian},
    )
    if config.layer_norm:
        hidden = [i for i, layer in enumerate(actor.mlp) if isinstance(layer, nn.Linear)][:-1]
        for index, width in zip(reversed(hidden), reversed(config.actor_hidden_dims), strict=True):
            actor.mlp.insert(index + 1, nn.LayerNorm(width))
    return actor.to(device)


class TwinCritics(nn.Module):
    """Two value functions of the same shape, computed together: matrices have a first dimension of 2.

    Attributes:
        obs_groups: Groups of observations that the critics read.
        obs_normalizer: Normalizes these observations.
    """

    def __init__(self, config: SacConfig, obs: TensorDict, num_actions: int) -> None:
        """Draw the weights as torch's linear layers do."""
        super().__init__()
        self.obs_groups = ["critic" if "critic" in set(obs.keys()) else "actor"]
        width = obs[self.obs_groups[0]].shape[-1]
        self.obs_normalizer = EmpiricalNormalization(width) if config.obs_normalization else nn.Identity()
        self._activation = resolve_nn_activation(config.activation)
        self._has_layer_norm = config.layer_norm
        self.weights, self.biases, self.gains, self.shifts = (nn.ParameterList() for _ in range(4))
        for fan_in, fan_out in itertools.pairwise(
            [width + num_actions, *config.critic_hidden_dims, config.num_quantiles]
        ):
            bound = 1.0 / math.sqrt(fan_in)
            self.weights.append(torch.empty(2, fan_in, fan_out).uniform_(-bound, bound))
            self.biases.append(torch.empty(2, 1, fan_out).uniform_(-bound, bound))
        for fan_out in config.critic_hidden_dims if config.layer_norm else ():
            self.gains.append(torch.ones(2, 1, fan_out))
            self.shifts.append(torch.zeros(2, 1, fan_out))

    def get_latent(self, obs: TensorDict) -> torch.Tensor:
        """Return the normalized observations, (samples, width)."""
        return self.obs_normalizer(obs[self.obs_groups[0]])

    def forward(self, latent: torch.Tensor, actions: torch.Tensor, *, learns: bool = True) -> torch.Tensor:
        """Return the values, (2, samples, 1), or their quantiles, (2, samples, num_quantiles).

        Args:
            latent: Result of :meth:`get_latent`.
            actions: Squashed actions in (-1, 1), (samples, num_actions).
            learns: Whether gradients reach the parameters, and not only the actions.
        """

        def of(parameters: nn.ParameterList, layer: int) -> torch.Tensor:
            return parameters[layer] if learns else parameters[layer].detach()

        x = torch.cat([latent, actions], dim=-1).expand(2, -1, -1)
        last = len(self.weights) - 1
        for layer in range(last + 1):
            weights = of(self.weights, layer)
            if weights.shape[-1] == 1:
                # On a CPU, a product with a matrix of one column is slow (docs/lab.md)
                x = (x * weights.mT).sum(dim=-1, keepdim=True) + of(self.biases, layer)
            else:
                x = torch.baddbmm(of(self.biases, layer), x, weights)
            if layer < last:
                if self._has_layer_norm:
                    x = functional.layer_norm(x, x.shape[-1:])
                    x = torch.addcmul(of(self.shifts, layer), x, of(self.gains, layer))
                x = self._activation(x)
        return x
