"""The policy and the value function: rsl_rl's networks, built from the agent's config or read from a checkpoint.

The policy's Gaussian has a bounded standard deviation. ``Policy`` is a trained policy as a function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.modules.distribution import GaussianDistribution
from tensordict import TensorDict
from torch import nn
from torch.distributions import Normal

from mjlab_dist.config import AgentConfig, PpoConfig, SacConfig, TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.learn import checkpoint
from mjlab_dist.learn.moments import ClippedNormalization
from mjlab_dist.learn.sac.actor_critic import make_actor

# Upper bound of the standard deviation, as in rsl_rl. The lower bound is `min_std` here, and 1e-6 in rsl_rl.
MAX_STD = 1e6

# Activations whose gradient is computed from their output, so they can overwrite their input
IN_PLACE = (nn.ELU, nn.SELU, nn.ReLU)


class BoundedGaussian(GaussianDistribution):
    """Gaussian whose standard deviation does not depend on the observation and stays in its range."""

    def __init__(self, output_dim: int, init_std: float, min_std: float, std_type: str) -> None:
        """Create the parameter of the standard deviation."""
        super().__init__(output_dim, init_std=init_std, std_range=(min_std, MAX_STD), std_type=std_type)

    def update(self, mlp_output: torch.Tensor) -> None:
        """Set the mean, (num_envs, output_dim), and the current standard deviation.

        Unlike in rsl_rl, the standard deviation is not clamped in this method: the gradient of a clamp is zero at the
        bound, so the standard deviation could not grow again. :meth:`project` keeps it in its range instead.
        """
        self._distribution = Normal(mlp_output, self.current_std())

    def current_std(self) -> torch.Tensor:
        """Return the standard deviation, (output_dim,)."""
        return self.std_param if self.std_type == "scalar" else self.log_std_param.exp()

    @torch.no_grad()
    def sample(self) -> torch.Tensor:
        """Draw actions, (num_envs, output_dim).

        This is ``torch.normal`` without its check that no standard deviation is negative or NaN. On a GPU, a failed
        check would make the CUDA context of the process unusable. Without the check, training finds the NaN in the
        actions and reports it.
        """
        return self.mean + self.std * torch.randn_like(self.mean)

    @torch.no_grad()
    def project(self) -> None:
        """Move the parameter back into its range. Call this after each optimizer step and after loading."""
        if self.std_type == "scalar":
            self.std_param.clamp_(*self.std_range)
        else:
            self.log_std_param.clamp_(*self.log_std_range)


def make_networks(config: PpoConfig, obs: TensorDict, num_actions: int, device: str) -> tuple[MLPModel, MLPModel]:
    """Build the policy and the value function.

    The value function reads the observations of the group ``critic``, or of ``actor`` if there is no such group.
    """
    make: Callable[..., MLPModel] = MLPModel
    if config.rnn != "none":
        make = functools.partial(
            RNNModel,
            rnn_type=config.rnn,
            rnn_hidden_dim=config.rnn_hidden_dim,
            rnn_num_layers=config.rnn_num_layers,
        )
    make = functools.partial(make, activation=config.activation, obs_normalization=config.obs_normalization)
    gaussian = functools.partial(
        BoundedGaussian, init_std=config.init_std, min_std=config.min_std, std_type=config.std_type
    )
    distribution = {"class_name": gaussian}
    # Weights are drawn in this order. Another order would change the initial weights of every run.
    dims = config.actor_hidden_dims
    actor = make(obs, {"actor": ["actor"]}, "actor", num_actions, dims, distribution_cfg=distribution).to(device)
    group = "critic" if "critic" in set(obs.keys()) else "actor"
    critic = make(obs, {group: [group]}, group, 1, config.critic_hidden_dims).to(device)
    # The last layer of the policy has a small gain, so that at first the actions hardly depend on the observation.
    for network, last_gain in ((actor, 0.01), (critic, 1.0)):
        # Activations that overwrite their input save memory. Nothing else in rsl_rl's MLP reads this input.
        for layer in network.mlp:
            if isinstance(layer, IN_PLACE):
                layer.inplace = True
        # Random orthogonal matrices as the initial weights of all layers, except recurrent ones
        if config.orthogonal_init:
            gains = [math.sqrt(2.0)] * len(network.mlp)
            gains[max(i for i, layer in enumerate(network.mlp) if isinstance(layer, nn.Linear))] = last_gain
            network.mlp.init_weights(tuple(gains))  # pyright: ignore[reportArgumentType]
        if config.obs_clip is not None:
            assert isinstance(network.obs_normalizer, EmpiricalNormalization)
            shape = network.obs_normalizer.mean.shape
            network.obs_normalizer = ClippedNormalization(shape, config.obs_clip).to(device)
    return actor, critic


def make_policy(config: AgentConfig, obs: TensorDict, num_actions: int, device: str) -> MLPModel:
    """Build the policy of any learner, whose weights are then loaded."""
    if isinstance(config, SacConfig):
        return make_actor(config, obs, num_actions, device)
    return make_networks(config, obs, num_actions, device)[0]


def load_policy(env: Env, config: TrainConfig, path: Path) -> MLPModel:
    """Load a trained policy into one process. Any number of ranks may have trained it."""
    content = checkpoint.load(path, env.device)
    return _loaded(config, path, content, env.get_observations(), env.num_actions)


def load_policy_without_env(config: TrainConfig, path: Path, device: str) -> MLPModel:
    """Load a trained policy without its task. The numbers of observations and actions are read from the checkpoint."""
    content = checkpoint.load(path, device)
    num_observations, num_actions = _sizes(content.get("actor_state_dict"))
    obs = TensorDict({"actor": torch.zeros(1, num_observations, device=device)}, batch_size=[1])
    return _loaded(config, path, content, obs, num_actions)


def _sizes(weights: Any) -> tuple[int, int]:
    """Return the numbers of observations and actions, read from the first and the last layer of a policy.

    If there are no layers, return arbitrary numbers: the later comparison with the config's networks reports the error.
    """
    names = weights if isinstance(weights, dict) else {}
    layers = [name for name in names if name.startswith("mlp.") and name.endswith(".weight")]
    if not layers:
        return 1, 1
    first = "rnn.rnn.weight_ih_l0" if "rnn.rnn.weight_ih_l0" in names else layers[0]
    per_action = weights.get("distribution.center", weights[layers[-1]])  # SAC's last layer has two outputs per action
    return weights[first].shape[1], per_action.shape[0]


def _loaded(config: TrainConfig, path: Path, content: Mapping[str, Any], obs: TensorDict, num_actions: int) -> MLPModel:
    actor = make_policy(config.agent, obs, num_actions, str(obs["actor"].device))
    check_fit({"actor": actor}, content, f"checkpoint {path}")
    actor.load_state_dict(content["actor_state_dict"])
    return actor.eval()


def check_fit(models: Mapping[str, nn.Module], saved: Mapping[str, Any], flag: str) -> None:
    """Raise if the networks of a checkpoint have the wrong shapes."""
    for name, model in models.items():
        if not isinstance(saved.get(f"{name}_state_dict"), dict):
            raise UserError(f"{flag}: has no {name}_state_dict; give a checkpoint of a run, model_<iteration>.pt")
        own = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
        found = {key: tuple(getattr(one, "shape", ())) for key, one in saved[f"{name}_state_dict"].items()}
        for key in [*own, *found]:
            if own.get(key) != found.get(key):
                there, here = (shapes.get(key, "missing") for shapes in (found, own))
                raise UserError(
                    f"{flag}: its networks differ from the config's: {name} {key} is {there} in the checkpoint and "
                    f"{here} in the config; use a checkpoint of a task with the same observations and actions, and the "
                    "--agent flags of its run"
                )


class Policy:
    """A trained policy, which maps observations to actions without exploration, on one device.

    Attributes:
        config: The run's config.
        checkpoint: The checkpoint.
        num_observations: Width of the observations.
        num_actions: Number of actions.
    """

    def __init__(self, config: TrainConfig, checkpoint: Path, device: str) -> None:
        """Load the policy.

        Args:
            config: The run's config.
            checkpoint: A checkpoint of the run.
            device: ``cpu`` or ``cuda:<index>``.

        Raises:
            UserError: If the checkpoint is damaged, or its networks differ in size from the config's.
        """
        self.config = config
        self.checkpoint = checkpoint
        with torch.random.fork_rng():  # creating networks draws random numbers, which must not affect the caller
            self._network = load_policy_without_env(config, checkpoint, device)
        self.num_observations = self._network.obs_dim
        assert self._network.distribution is not None
        self.num_actions = self._network.distribution.output_dim

    @torch.no_grad()
    def __call__(self, observations: torch.Tensor) -> torch.Tensor:
        """Return the actions, (num_envs, num_actions).

        A recurrent policy keeps a hidden state for each row; see :meth:`reset`.

        Args:
            observations: Observations of the group ``actor`` as the env returns them, (num_envs, num_observations):
                with scale, clip and history, but not normalized.
        """
        return self._network(TensorDict({"actor": observations}, batch_size=[len(observations)]))

    @torch.no_grad()
    def reset(self, dones: torch.Tensor | None = None) -> None:
        """Reset the hidden state of rows whose episode has ended.

        Args:
            dones: Rows whose episode has ended, (num_envs,) of bool; None for all.
        """
        self._network.reset(dones)
