"""A trained policy as a function, for user programs."""

from __future__ import annotations

from pathlib import Path

import torch
from tensordict import TensorDict

from mjlab_dist.config import TrainConfig
from mjlab_dist.learn.networks import load_policy_without_env


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
        layers = [layer for layer in self._network.mlp if isinstance(layer, torch.nn.Linear)]
        self.num_actions = layers[-1].out_features

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
