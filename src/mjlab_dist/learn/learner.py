"""What the training loop requires of a learner, and the choice of the learner."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.config import SacConfig, TrainConfig
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.distributed.synchronizer import Synchronizer
from mjlab_dist.env import Env
from mjlab_dist.learn.metrics import Clock
from mjlab_dist.learn.ppo import make_ppo
from mjlab_dist.learn.replicas import Replicas
from mjlab_dist.learn.sac.sac import SAC


class Learner(Protocol):
    """A learner on one rank.

    Attributes:
        storage: The current rollout.
        networks: All networks by name; one is the policy, ``actor``.
        models: The networks that a new run can take from a checkpoint.
        num_parameters: Number of learned parameters.
        batch_size: Samples of this rank in a gradient step.
        can_capture_rollouts: Whether CUDA graphs can contain control steps.
        synchronizer: Reduces gradients between backward and optimizer step.
        clock: Counts the time spent in collectives.
        rate: The learning rate, a scalar tensor.
        replicas: Averages or compares the copies of the learner on all ranks.
    """

    storage: RolloutStorage
    networks: dict[str, torch.nn.Module]
    num_parameters: int
    can_capture_rollouts: bool
    synchronizer: Synchronizer
    clock: Clock
    rate: torch.Tensor
    replicas: Replicas

    @property
    def models(self) -> Mapping[str, torch.nn.Module]: ...

    @property
    def batch_size(self) -> float: ...

    def train_mode(self) -> None:
        """Set the networks to training."""

    def no_grad(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of rollouts."""
        ...

    def begin_iteration(self, iteration: int, num_iterations: int) -> None:
        """Set what the config determines for an iteration, whatever a loaded checkpoint contained."""

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Return actions with exploration, (num_envs, num_actions), and record them."""
        ...

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Record the results of a step of the envs."""

    def compute_returns(self, obs: TensorDict) -> None:
        """End the rollout. The observations are those after its last step."""

    def update(self) -> dict[str, torch.Tensor]:
        """Learn.

        Returns:
            Columns of metrics.jsonl as scalar tensors of this rank, such as ``loss/value``.
        """
        ...

    def action_std(self) -> torch.Tensor:
        """Return the mean standard deviation of the actions, a scalar."""
        ...

    def notes(self) -> list[str]:
        """Return lines about the learner for the user."""
        ...

    def networks_in(self, state: Mapping[str, Any]) -> Mapping[str, torch.nn.Module]:
        """Return the networks that a checkpoint must contain."""
        ...

    def network_state(self, name: str) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers of the network ``name``. With shards, this is a collective."""
        ...

    def save(self) -> dict[str, Any]:
        """Return the state that is equal on all ranks. With shards, this is a collective."""
        ...

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Load the result of :meth:`save`, or only the networks named in ``load_cfg``."""
        ...

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs to this rank alone, by name."""
        ...

    def load_memory(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Restore the result of :meth:`memory`."""

    def history(self) -> dict[str, torch.Tensor]:
        """Return the transitions of this rank's envs that the learner keeps, (steps, num_envs, ...), by name.

        The steps are the same on all ranks. PPO keeps none between iterations.
        """
        ...

    def load_history(self, history: Mapping[str, torch.Tensor], *, continues: bool) -> str:
        """Restore the result of :meth:`history`, or start with an empty one.

        Args:
            history: The transitions, on the CPU; empty if there are none.
            continues: Whether the envs continue the episodes of the last transitions.

        Returns:
            A line for the user; empty if everything is as before.
        """
        ...


def make_learner(config: TrainConfig, env: Env, synchronizer: Synchronizer, rank: Rank) -> Learner:
    """Build the learner that the config chooses."""
    if isinstance(config.agent, SacConfig):
        return SAC(config, env, synchronizer, rank)
    return make_ppo(config, env, synchronizer)


def flatten(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return all tensors in the result of :meth:`Learner.save`, or in a checkpoint, by readable names."""
    tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
    rates = []
    for key, part in state.items():
        name = key.removesuffix("_state_dict")
        if name != key and "param_groups" in part:
            tensors |= {f"{name}.{k}[{i}]": t for i, s in part["state"].items() for k, t in s.items()}
            rates += [group["lr"] for group in part["param_groups"]]
        elif name != key:
            tensors |= {f"{name}.{k}": t for k, t in part.items()}
    device = next(iter(tensors.values())).device
    tensors["learning_rate"] = torch.tensor(rates)
    return {name: t.to(device) for name, t in tensors.items()}
