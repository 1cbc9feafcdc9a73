"""Soft actor-critic over all ranks: one collective per gradient step, with the same result for any number of ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import nn

from mjlab_dist.config import SacConfig, TrainConfig
from mjlab_dist.distributed.group import overwrite_by_main
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.distributed.synchronizer import AllReduce, Synchronizer
from mjlab_dist.env import Env
from mjlab_dist.env.observation_group import FinalObservations
from mjlab_dist.env.sizing import free_bytes
from mjlab_dist.errors import UserError, byte_size
from mjlab_dist.learn.metrics import Clock
from mjlab_dist.learn.moments import NormalizerMoments
from mjlab_dist.learn.replicas import Replicas
from mjlab_dist.learn.sac.actor_critic import SquashedGaussian, TwinCritics, make_actor
from mjlab_dist.learn.sac.keyed_random import random_normals
from mjlab_dist.learn.sac.losses import actor_loss, critic_loss, target_values, temperature_loss
from mjlab_dist.learn.sac.ranges import action_ranges
from mjlab_dist.learn.sac.replay import NEXT, Batch, Replay, block_size
from mjlab_dist.learn.update import FlatGradients, flattened, make_adam, scheduled_rate
from mjlab_dist.machine.memory import transition_bytes

# Means over the gradient steps of an iteration, and over those that change the policy, as columns of metrics.jsonl
COLUMNS = ("loss/critic", "value", "entropy", "temperature")
POLICY_COLUMNS = ("loss/actor", "loss/temperature")


class Temperature(nn.Module):
    """Weight of the entropy, as its logarithm."""

    log: torch.Tensor

    def __init__(self, initial: float, *, learns: bool) -> None:
        """Create the parameter, or a buffer if the temperature is fixed."""
        super().__init__()
        log = torch.tensor(initial).log()
        if learns:
            self.log = nn.Parameter(log)
        else:
            self.register_buffer("log", log)


class SAC:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) over all ranks.

    Every rank keeps the transitions of its own envs, and draws its part of each batch from them. Gradients of critics,
    policy and temperature are computed at the same parameters, so that one collective averages all of them.

    Attributes:
        storage: The current rollout.
        networks: ``actor``, ``critic``, ``target`` (the target critics) and ``temperature``.
        models: The networks that a new run can take from a checkpoint.
        num_parameters: Number of learned parameters.
        batch_size: Samples of this rank in a gradient step.
        can_capture_rollouts: Whether CUDA graphs can contain control steps.
        synchronizer, clock, rate, replicas, no_grad: As in :class:`~mjlab_dist.learn.ppo.PPO`.
    """

    can_capture_rollouts = False

    def __init__(self, config: TrainConfig, env: Env, synchronizer: Synchronizer, rank: Rank) -> None:
        """Build the networks, the replay and the optimizer."""
        assert isinstance(config.agent, SacConfig)
        agent = self._agent = config.agent
        self._seed = config.seed
        device, obs = env.device, env.get_observations()
        self.no_grad: Callable[[], contextlib.AbstractContextManager[None]] = torch.no_grad
        self.synchronizer = synchronizer
        self._all_reduce = synchronizer if isinstance(synchronizer, AllReduce) else None
        self.clock = Clock(device)
        self.rate = torch.full((), agent.learning_rate, device=device)
        # Networks. All ranks start with the parameters of rank 0.
        self.actor = make_actor(agent, obs, env.num_actions, device)
        assert isinstance(self.actor.distribution, SquashedGaussian)
        self._distribution = self.actor.distribution
        center, half_range = action_ranges(env)
        self._distribution.center.copy_(center)
        self._distribution.half_range.copy_(half_range)
        self._critic, self._target = (TwinCritics(agent, obs, env.num_actions).to(device) for _ in range(2))
        self._target.load_state_dict(self._critic.state_dict())
        self._target.requires_grad_(requires_grad=False)
        self._target.obs_normalizer = self._critic.obs_normalizer
        self._temperature = Temperature(agent.temperature, learns=agent.learn_temperature).to(device)
        self._target_entropy = -agent.target_entropy_scale * env.num_actions
        self.models = {"actor": self.actor, "critic": self._critic}
        self.networks: dict[str, nn.Module] = {
            **self.models,
            "target": self._target,
            "temperature": self._temperature,
        }
        overwrite_by_main([t for network in self.networks.values() for t in network.state_dict().values()])
        # Optimizer, with all gradients in one buffer
        trained = [list(self._critic.parameters()), [*self.actor.parameters(), *self._temperature.parameters()]]
        self._values, self._policy = (nn.Parameter(flattened(group)) for group in trained)
        self._gradients = FlatGradients(trained, device)
        self._values.grad, self._policy.grad = self._gradients.groups
        self.num_parameters = self._values.numel() + self._policy.numel()
        self.optimizer = make_adam([self._values, self._policy], self.rate)
        self._target_values = flattened(list(self._target.parameters()))
        # Normalizers, and the copies of the learner on all ranks
        self._normalizers = {
            name: NormalizerMoments(model.obs_normalizer, model.obs_groups)
            for name, model in self.models.items()
            if isinstance(model.obs_normalizer, EmpiricalNormalization)
        }
        copies = [self._values, self._policy, self._target_values]
        self.replicas = Replicas(copies, [self.optimizer], self.rate, self._normalizers, clock=self.clock)
        # Rollout and replay
        self._make_storage(env, rank)
        self._num_updates = 0
        self._totals = torch.zeros(len(COLUMNS), device=device)
        self._policy_totals = torch.zeros(len(POLICY_COLUMNS), device=device)

    def _make_storage(self, env: Env, rank: Rank) -> None:
        agent, device, obs = self._agent, env.device, env.get_observations()
        # Rollout, and the observations after its steps
        self.storage = RolloutStorage("rl", env.num_envs, agent.num_steps_per_env, obs, [env.num_actions], device)
        self._groups = list(dict.fromkeys([*self.actor.obs_groups, *self._critic.obs_groups]))
        self._next = {name: torch.zeros_like(self.storage.observations[name]) for name in self._groups}
        self._terminated = torch.zeros(agent.num_steps_per_env, env.num_envs, dtype=torch.bool, device=device)
        self._final = FinalObservations(env, only_time_outs=True)
        # Replay
        total = env.num_envs * rank.world_size
        widths = {name: obs[name].shape[-1] for name in self._groups}
        num_rows = agent.replay_size // total
        self._replay_bytes = num_rows * env.num_envs * transition_bytes(widths, env.num_actions)
        _check_room(agent, self._replay_bytes, rank, device)
        self._replay = Replay(num_rows, env.num_envs, widths, env.num_actions, device)
        self._block = block_size(total, agent.batch_size)
        self.batch_size = agent.batch_size // rank.world_size
        # Positions of this rank's samples in the random numbers of an update
        self._positions = torch.arange(self.batch_size, device=device) + rank.rank * self.batch_size

    def train_mode(self) -> None:
        """Set the networks to training."""
        for network in self.networks.values():
            network.train()

    def begin_iteration(self, iteration: int, num_iterations: int) -> None:
        """Set what the config determines, whatever a loaded checkpoint contained."""
        self.rate.fill_(scheduled_rate(self._agent, iteration, num_iterations))

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Return actions, (num_envs, num_actions), and record them with their observations."""
        step = self.storage.step
        actions = self.actor(obs, stochastic_output=True)
        self.storage.observations[step] = obs
        self.storage.actions[step] = actions
        return actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Record a step. The arguments are those of rsl_rl's PPO."""
        step, time_outs = self.storage.step, extras["time_outs"]
        self.storage.rewards[step] = rewards.unsqueeze(1)
        self.storage.dones[step] = dones.unsqueeze(1)
        self._terminated[step] = dones & ~time_outs
        for name in self._groups:
            after = obs[name]
            if final := self._final.observed:
                after = torch.where(time_outs.unsqueeze(1), final[name], after)
            self._next[name][step] = after
        self.storage.step += 1

    def compute_returns(self, obs: TensorDict) -> None:  # noqa: ARG002 (the learner's interface)
        """Move the rollout into the replay. Returns are not computed: batches contain rewards."""
        storage = self.storage
        actions = (storage.actions - self._distribution.center) / self._distribution.half_range
        self._replay.add(
            {
                **{name: storage.observations[name] for name in self._groups},
                **{NEXT + name: after for name, after in self._next.items()},
                "actions": actions,
                "rewards": storage.rewards.squeeze(-1),
                "dones": storage.dones.squeeze(-1).bool(),
                "terminated": self._terminated,
            }
        )

    def update(self) -> dict[str, torch.Tensor]:
        """Take the gradient steps of an iteration.

        Returns:
            :data:`COLUMNS` and :data:`POLICY_COLUMNS` as scalar tensors of this rank. They are 0 until the replay has
            enough steps.
        """
        agent = self._agent
        # Moments of the observations of this rollout, over all ranks
        observations = self.storage.observations.flatten(0, 1)
        for moments in self._normalizers.values():
            moments.observe(observations)
        if self.synchronizer.keeps_equal:
            self.replicas.sum([moments.pending for moments in self._normalizers.values()])
        for moments in self._normalizers.values():
            moments.apply()
        # Gradient steps
        self._totals.zero_()
        self._policy_totals.zero_()
        count = round(agent.updates_per_step * agent.num_steps_per_env)
        numbers = range(self._num_updates, self._num_updates + count)
        if self._replay.num_rows >= max(agent.warmup_steps, agent.n_step):
            updates = torch.arange(numbers.start, numbers.stop, device=self._positions.device)
            samples = updates.unsqueeze(1) * agent.batch_size + self._positions
            batches = self._replay.sample(
                3 * self._seed, samples, block=self._block, num_steps=agent.n_step, gamma=agent.gamma
            )
            num_actions = batches.actions.shape[-1]
            noises = [random_normals(3 * self._seed + i, samples, num_actions).unbind() for i in (1, 2)]
            for number, batch, noise, next_noise in zip(numbers, batches.split(), *noises, strict=True):
                self._step(batch, noise if self._changes_policy(number) else None, next_noise)
            self._num_updates = numbers.stop
        if self.synchronizer.keeps_equal:
            self.replicas.agree()
        self.storage.clear()
        policy_count = max(1, sum(map(self._changes_policy, numbers)))
        return {
            **dict(zip(COLUMNS, (self._totals / count).unbind(), strict=True)),
            **dict(zip(POLICY_COLUMNS, (self._policy_totals / policy_count).unbind(), strict=True)),
        }

    def _changes_policy(self, number: int) -> bool:
        return number % self._agent.policy_period == 0

    def _step(self, batch: Batch, noise: torch.Tensor | None, next_noise: torch.Tensor) -> None:
        """Take a gradient step; without noise, only the critics change."""
        self._gradients.buffer.zero_()
        temperature = self._temperature.log.detach().exp()
        self._backward(batch, next_noise, temperature)
        # Adam leaves parameters without gradients as they are
        self._policy.grad = None
        if noise is not None:
            self._backward_policy(batch, noise, temperature)
            self._policy.grad = self._gradients.groups[1]
        with self.clock.waiting():
            self.synchronizer.reduce(self._gradients.buffer)
        self.optimizer.step()
        self._target_values.lerp_(self._values.detach(), self._agent.tau)

    def _backward(self, batch: Batch, noise: torch.Tensor, temperature: torch.Tensor) -> None:
        """Compute this rank's gradients of the critics."""
        obs, next_obs = cast("TensorDict", batch.observations), cast("TensorDict", batch.next_observations)
        with torch.no_grad():
            actions, log_prob = self._draw(next_obs, noise)
            next_values = self._target(self._target.get_latent(next_obs), actions)
            targets = target_values(batch.rewards, batch.discounts, next_values, log_prob, temperature)
        values = self._critic(self._critic.get_latent(obs), batch.actions)
        loss = critic_loss(values, targets)
        loss.backward()
        with torch.no_grad():
            self._totals += torch.stack([loss, values.mean(), -log_prob.mean(), temperature])

    def _backward_policy(self, batch: Batch, noise: torch.Tensor, temperature: torch.Tensor) -> None:
        """Compute this rank's gradients of policy and temperature."""
        obs = cast("TensorDict", batch.observations)
        actions, log_prob = self._draw(obs, noise)
        values = self._critic(self._critic.get_latent(obs), actions, learns=False)
        of_actor = actor_loss(values, log_prob, temperature)
        of_temperature = temperature_loss(self._temperature.log, log_prob, self._target_entropy)
        (of_actor + of_temperature if self._agent.learn_temperature else of_actor).backward()
        with torch.no_grad():
            self._policy_totals += torch.stack([of_actor, of_temperature])

    def _draw(self, obs: TensorDict, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw squashed actions of the policy, with their log-probabilities."""
        self._distribution.update(self.actor.mlp(self.actor.get_latent(obs)))
        return self._distribution.draw(noise)

    def action_std(self) -> torch.Tensor:
        """Return the policy's standard deviation before the tanh: a mean over the latest samples and all actions."""
        return self._distribution.std.detach().mean()

    def notes(self) -> list[str]:
        """Return lines about the learner for the user."""
        room = f"Replay: {self._agent.replay_size:,} transitions, {byte_size(self._replay_bytes)} per rank."
        return [room, self.replicas.difference()] if self.replicas.unlike_ranks else [room]

    def networks_in(self, state: Mapping[str, Any]) -> Mapping[str, nn.Module]:  # noqa: ARG002 (the learner's interface)
        """Return the networks that a checkpoint must contain."""
        return self.networks

    def network_state(self, name: str) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers of the network ``name``."""
        return self.networks[name].state_dict()

    def save(self) -> dict[str, Any]:
        """Return the state that is the same on all ranks."""
        return {
            **{f"{name}_state_dict": network.state_dict() for name, network in self.networks.items()},
            "optimizer_state_dict": self.optimizer.state_dict(),
            "num_updates": self._num_updates,
        }

    def load(self, loaded_dict: Mapping[str, Any], load_cfg: Mapping[str, bool] | None, strict: bool) -> bool:
        """Load the result of :meth:`save`; the arguments and the result are those of rsl_rl's PPO."""
        chosen = load_cfg or dict.fromkeys((*self.networks, "optimizer", "iteration"), True)
        for name, network in self.networks.items():
            if chosen.get(name):
                network.load_state_dict(loaded_dict[f"{name}_state_dict"], strict=strict)
        if not chosen.get("target"):
            self._target.load_state_dict(self._critic.state_dict())
        for normalizer in self._normalizers.values():
            normalizer.rebase()
        if chosen.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
            self._num_updates = loaded_dict["num_updates"]
        return chosen.get("iteration", False)

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs to this rank alone, besides the replay: the error of compressed gradients."""
        error = None if self._all_reduce is None else self._all_reduce.error
        return {} if error is None else {"error": error}

    def load_memory(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Restore the state of this rank."""
        if self._all_reduce is not None and "error" in memory:
            self._all_reduce.error = memory["error"].to(self.rate.device, copy=True)

    def history(self) -> dict[str, torch.Tensor]:
        """Return the replay."""
        return self._replay.state()

    def load_history(self, history: Mapping[str, torch.Tensor], *, continues: bool) -> str:
        """Restore the replay. See :meth:`Learner.load_history`."""
        if self._replay.load_state(history):
            if not continues:
                self._replay.end_episodes()
            return ""
        steps = self._agent.warmup_steps
        return f"The replay is empty, so learning goes on only after {steps} control steps (--agent.warmup-steps)."


def _check_room(agent: SacConfig, needed: int, rank: Rank, device: str) -> None:
    """Raise if the replay does not fit into this rank's part of the free memory."""
    free = free_bytes(device) // (rank.local_world_size if device == "cpu" else 1)
    if needed > free:
        raise UserError(
            f"--agent.replay-size {agent.replay_size}: needs {byte_size(needed)} per rank, but rank {rank.rank} has "
            f"{byte_size(free)}; use at most {agent.replay_size * free // needed}"
        )
