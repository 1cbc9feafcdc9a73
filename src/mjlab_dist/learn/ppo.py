"""rsl_rl's PPO, with an update that has one collective per mini-batch and the same result for any number of ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import rsl_rl.algorithms
import rsl_rl.algorithms.ppo
import torch
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

from mjlab_dist.config import PpoConfig, TrainConfig
from mjlab_dist.distributed.group import overwrite_by_main
from mjlab_dist.distributed.synchronizer import AllReduce, Synchronizer
from mjlab_dist.env import Env
from mjlab_dist.imports import patched
from mjlab_dist.learn.capture import CapturedCall, CapturedStep
from mjlab_dist.learn.extensions import IntrinsicReward, mirror, mirror_loss, symmetry_cfg
from mjlab_dist.learn.metrics import Clock
from mjlab_dist.learn.moments import NormalizerMoments, RewardScale, advantage_moments, normalize
from mjlab_dist.learn.networks import BoundedGaussian, make_networks
from mjlab_dist.learn.replicas import Replicas
from mjlab_dist.learn.update import (
    Adam,
    Batch,
    FlatGradients,
    adapt_rate,
    make_adam,
    precision,
    recurrent_mini_batches,
    scheduled_rate,
    shuffled_mini_batches,
)


def surrogate_loss(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, advantages: torch.Tensor, clip: float
) -> torch.Tensor:
    """Return the mean clipped surrogate loss (arXiv:1707.06347, equation 7, negated).

    Args:
        log_prob: Log-probabilities of the actions under the current policy, (samples,) or (steps, envs).
        old_log_prob: Log-probabilities of the same actions under the policy that collected the data, of the same shape.
        advantages: Normalized advantages, of the same shape.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return torch.max(-advantages * ratio, -advantages * clipped).mean()


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Return the mean squared error of the values.

    Args:
        values: Current values, (samples, 1) or (steps, envs, 1).
    """
    errors = (values - returns).square()
    if clip is None:
        return errors.mean()
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.max(errors, (clipped - returns).square()).mean()


class PPO(rsl_rl.algorithms.PPO):
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) over all ranks.

    Losses and schedule are rsl_rl's. Advantages and observations are normalized with mean and variance over all ranks.
    Gradients are averaged together with the KL divergence, then clipped. Nothing waits for the device. Therefore, the
    learning rate is a tensor that the optimizer reads. Recurrent networks are the exception: rsl_rl splits their
    mini-batches into episodes, whose lengths depend on the data.

    Attributes:
        synchronizer: Reduces gradients between backward and optimizer step.
        models: The policy ``actor`` and the value function ``critic``.
        networks: The same, and ``rnd``, the networks of random network distillation, if it is used.
        clock: Counts the time spent in collectives.
        rate: The learning rate, a scalar tensor.
        intrinsic: The intrinsic reward; None without random network distillation.
        num_parameters: Number of learned parameters.
        replicas: Averages or compares the copies of the learner on all ranks.
        no_grad: The context of rollouts.
        can_capture: Whether CUDA graphs can contain the update.
        can_capture_rollouts: Whether they can contain control steps. Those of recurrent policies wait for the device.
        batch_size: Samples of this rank in a mini-batch.
    """

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        config: TrainConfig,
        *,
        env: Env,
        synchronizer: Synchronizer,
    ) -> None:
        """Build the optimizer and the buffers of the update."""
        agent, device = config.agent, env.device
        assert isinstance(agent, PpoConfig)
        self._agent = agent
        # rsl_rl's constructor sets `learning_rate`, whose setter needs `rate`. The constructor also creates an
        # optimizer. It is replaced below, but must be our Adam, because torch's Adam would import torch's compiler.
        self.rate = torch.zeros((), device=device)
        with patched(rsl_rl.algorithms.ppo, "resolve_optimizer", lambda _name: Adam):
            super().__init__(
                actor,
                critic,
                storage,
                num_learning_epochs=agent.num_learning_epochs,
                num_mini_batches=agent.num_mini_batches,
                clip_param=agent.clip_param,
                gamma=agent.gamma,
                lam=agent.lam,
                value_loss_coef=agent.value_loss_coef,
                entropy_coef=agent.entropy_coef,
                learning_rate=agent.learning_rate,
                max_grad_norm=agent.max_grad_norm,
                use_clipped_value_loss=agent.use_clipped_value_loss,
                schedule=agent.schedule,
                desired_kl=agent.desired_kl,
                # True prevents rsl_rl from normalizing advantages: update() normalizes them over all ranks.
                normalize_advantage_per_mini_batch=True,
                use_mixed_precision=agent.precision == "bf16",
                device=device,
                symmetry_cfg=symmetry_cfg(agent.symmetry, env),
            )
        # Store the synchronizer and the options that rsl_rl does not have
        self._config = config
        self.no_grad: Callable[[], contextlib.AbstractContextManager[None]] = torch.inference_mode
        self.can_capture = True
        self.synchronizer = synchronizer
        self._all_reduce = synchronizer if isinstance(synchronizer, AllReduce) else None
        self.clock = Clock(device)
        self.models = {"actor": self._raw_actor, "critic": self._raw_critic}
        self.batch_size = env.num_envs * agent.num_steps_per_env / agent.num_mini_batches
        self._is_recurrent = actor.is_recurrent or critic.is_recurrent
        self.can_capture_rollouts = not self._is_recurrent
        self.intrinsic = None
        if agent.rnd.is_used:
            unit = env.step_dt_s if config.env.reward_scale == "dt" else 1.0
            self.intrinsic = IntrinsicReward(agent.rnd, storage.observations, unit)
        self.networks: dict[str, torch.nn.Module] = {**self.models}
        if self.intrinsic is not None:
            self.networks["rnd"] = self.intrinsic.rnd
        parameters = [p for network in self.networks.values() for p in network.parameters() if p.requires_grad]
        self.num_parameters = sum(p.numel() for p in parameters)
        # All ranks start with the parameters of rank 0.
        overwrite_by_main([t for network in self.networks.values() for t in network.state_dict().values()])
        trained = self._make_optimizer()
        self._optimizers = [self.optimizer]
        if self.intrinsic is not None:
            trained.append(self.intrinsic.parameters)
            self._optimizers.append(self.intrinsic.optimizer)
        self._gradients = FlatGradients(trained, self.device)
        # Normalizers, and the copies of the learner on all ranks
        self._normalizers = {
            name: NormalizerMoments(model.obs_normalizer, model.obs_groups)
            for name, model in self.models.items()
            if isinstance(model.obs_normalizer, EmpiricalNormalization)
        }
        if self.intrinsic is not None and isinstance(self.intrinsic.rnd.state_normalizer, EmpiricalNormalization):
            groups = self.intrinsic.rnd.obs_groups["rnd_state"]
            self._normalizers["rnd"] = NormalizerMoments(self.intrinsic.rnd.state_normalizer, groups)
        self.replicas = Replicas(
            list(chain(*trained)),
            self._optimizers,
            self.rate,
            self._normalizers,
            clock=self.clock,
            equal=list(self.intrinsic.moments().values()) if self.intrinsic is not None else (),
        )
        # Scale of the rewards, and sums of the losses
        scales = agent.reward_normalization
        self._reward_scale = RewardScale(self.storage.num_envs, self.gamma, self.device) if scales else None
        self._raw_rewards = torch.zeros_like(self.storage.rewards) if scales else torch.empty(0)
        self._losses = ["loss/value", "loss/surrogate", "loss/entropy"]  # in the order of their sums
        self._losses += ["loss/symmetry"] * (self.symmetry is not None)
        self._losses += ["loss/rnd"] * (self.intrinsic is not None)
        self._totals = torch.zeros(len(self._losses) + 1, device=self.device)
        # CUDA graphs, which need the same sizes and addresses in every call. Recurrent mini-batches vary in size.
        self._captures = agent.capture and self.can_capture and self.device != "cpu" and not self._is_recurrent
        self._step = self._make_step()
        returns = super().compute_returns
        self._compute_returns: Callable[[TensorDict], None] = (
            CapturedCall(returns, "the computation of returns", self.device) if self._captures else returns
        )

    def _make_optimizer(self) -> list[list[torch.nn.Parameter]]:
        """Build the optimizer of the policy and the value function.

        Returns:
            For each of the two, the parameters whose gradients the synchronizer reduces.
        """
        trained = [list(model.parameters()) for model in self.models.values()]
        self.optimizer = make_adam(chain(*trained), self.rate)
        return trained

    @property
    def _distribution(self) -> BoundedGaussian:
        assert isinstance(self._raw_actor.distribution, BoundedGaussian)
        return self._raw_actor.distribution

    def action_std(self) -> torch.Tensor:
        """Return the policy's current standard deviation, a mean over the actions."""
        return self._distribution.current_std().detach().mean()

    @property
    def learning_rate(self) -> float:
        """The learning rate; reading it waits for the device."""
        return self.rate.item()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.rate.fill_(value)

    def begin_iteration(self, iteration: int, num_iterations: int) -> None:
        """Set what the config determines for an iteration, whatever a loaded checkpoint contained."""
        if self.schedule != "adaptive":
            self.learning_rate = scheduled_rate(self._agent, iteration, num_iterations)
        if self.intrinsic is not None:
            self.intrinsic.begin_iteration(iteration, num_iterations)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Record a step. The arguments are the same as in rsl_rl."""
        if self._reward_scale is not None:
            self._raw_rewards[self.storage.step] = rewards.unsqueeze(1)
            self._reward_scale.observe(rewards, dones)
        super().process_env_step(obs, rewards, dones, extras)

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages. The arguments are the same as in rsl_rl."""
        # Sums over ranks
        pending = [] if self._reward_scale is None else [self._reward_scale.pending]
        if self.intrinsic is not None:
            self.intrinsic.observe(self.storage.observations, obs)
            pending.append(self.intrinsic.pending)
        self.replicas.sum(pending)
        # Rewards
        if self._reward_scale is not None:
            # Scale only the raw rewards: stored rewards also contain the values at time-outs, which are already scaled.
            self.storage.rewards += self._raw_rewards * (self._reward_scale.apply() - 1.0)
        if self.intrinsic is not None:
            self.storage.rewards += self.intrinsic.apply().unsqueeze(-1)
        self._compute_returns(obs)

    def update(self) -> dict[str, torch.Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Learn from the rollout in the storage.

        Returns:
            Means over mini-batches, as scalar tensors of this rank: ``loss/value``, ``loss/surrogate``,
            ``loss/entropy``, and ``loss/symmetry`` and ``loss/rnd`` if they are used; ``kl``, the KL divergence that
            the adaptive learning rate used; and ``mean_intrinsic_reward``, if there is one.
        """
        # Mini-batches, with advantages normalized
        batches = self._mini_batches()
        if self.use_mixed_precision:
            self._round_old(batches)
        if self.symmetry is not None:
            for batch in batches:
                mirror(self.symmetry, batch)
        # Epochs: backward, reduction over ranks, optimizer step
        self._totals.zero_()
        for _ in range(self.num_learning_epochs):
            for batch in batches:
                self._step(batch)
        # Update observation normalizers only now: the epochs must normalize observations in the way the rollout did.
        for moments in self._normalizers.values():
            moments.apply()
        if self.synchronizer.keeps_equal:
            self.agree()
        # Clear the storage, and return the metrics
        self.storage.clear()
        means = self._totals / (self.num_learning_epochs * self.num_mini_batches)
        columns = dict(zip((*self._losses, "kl"), means.unbind(), strict=True))
        return columns if self.intrinsic is None else {**columns, "mean_intrinsic_reward": self.intrinsic.mean}

    def agree(self) -> None:
        """Make the learners of all ranks equal, as :meth:`Replicas.agree` does."""
        self.replicas.agree()

    def notes(self) -> list[str]:
        """Return lines about the learner for the user."""
        return [self.replicas.difference()] if self.replicas.unlike_ranks else []

    def networks_in(self, state: Mapping[str, Any]) -> Mapping[str, torch.nn.Module]:
        """Return the networks that a checkpoint must contain. The run may have had no intrinsic reward until now."""
        return {name: one for name, one in self.networks.items() if name != "rnd" or "rnd_state_dict" in state}

    def network_state(self, name: str) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers of the network ``name``. With shards, this is a collective."""
        return self.networks[name].state_dict()

    def save(self) -> dict[str, Any]:
        """Return the learner's state as unmodified rsl_rl does. With shards, this is a collective."""
        states: dict[str, Any] = {f"{name}_state_dict": self.network_state(name) for name in self.networks}
        states["optimizer_state_dict"] = self.optimizer.state_dict()
        if self.intrinsic is not None:
            states["rnd_optimizer_state_dict"] = self.intrinsic.optimizer.state_dict()
        if self._reward_scale is not None:
            states["reward_sums"] = self._reward_scale.sums
        return states

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Load the result of :meth:`save` or of unmodified rsl_rl. Arguments and result are the same as in rsl_rl."""
        # Networks
        chosen = load_cfg or dict.fromkeys((*self.networks, "optimizer", "iteration"), True)
        if "rnd_state_dict" not in loaded_dict:
            chosen = {**chosen, "rnd": False}  # the run had no intrinsic reward until now
        for name, network in self.networks.items():
            if chosen.get(name):
                network.load_state_dict(loaded_dict[f"{name}_state_dict"], strict=strict)
        self._distribution.project()  # min_std may have been lower when this was saved
        # Normalization
        for normalizer in self._normalizers.values():
            normalizer.rebase()
        if self._reward_scale is not None and "reward_sums" in loaded_dict:
            self._reward_scale.sums.copy_(loaded_dict["reward_sums"])
        # Optimizers
        if self.intrinsic is not None and chosen.get("rnd"):
            self.intrinsic.optimizer.load_state_dict(loaded_dict["rnd_optimizer_state_dict"])
        if chosen.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
            self._step = self._make_step()  # recorded graphs use the old tensors
        return chosen.get("iteration", False)

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs to this rank alone.

        Returns:
            For recurrent networks, their hidden states, (layers, num_envs, width) each; for normalized rewards,
            ``reward``, and for normalized intrinsic rewards, ``intrinsic``, (num_envs,) each; for compressed gradients,
            ``error``, see :class:`AllReduce`.
        """
        sums = {} if self._reward_scale is None else {"reward": self._reward_scale.discounted}
        if self.intrinsic is not None:
            sums |= self.intrinsic.memory()
        if self._all_reduce is not None and self._all_reduce.error is not None:
            sums["error"] = self._all_reduce.error
        states = {name: model.get_hidden_state() for name, model in self.models.items()}
        return sums | {
            f"{name}/{i}": part
            for name, state in states.items()
            for i, part in enumerate(state if isinstance(state, tuple) else (state,))
            if part is not None
        }

    def load_memory(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Restore the state of this rank."""
        if self._reward_scale is not None:
            self._reward_scale.discounted.copy_(memory["reward"])
        if self.intrinsic is not None and "intrinsic" in memory:
            self.intrinsic.discounted.copy_(memory["intrinsic"])
        if self._all_reduce is not None and "error" in memory:
            self._all_reduce.error = memory["error"].to(self.device, copy=True)
        for name, model in self.models.items():
            match [memory[key].to(self.device) for key in sorted(memory) if key.startswith(f"{name}/")]:
                case [hidden, cell]:
                    model.reset(hidden_state=(hidden, cell))
                case [hidden]:
                    model.reset(hidden_state=hidden)

    def history(self) -> dict[str, torch.Tensor]:
        """Return nothing: no transition is kept between iterations."""
        return {}

    def load_history(self, history: Mapping[str, torch.Tensor], *, continues: bool) -> str:  # noqa: ARG002 (the learner's interface)
        """Do nothing."""
        return ""

    def _permutation(self, num_samples: int) -> torch.Tensor:
        """Draw the order of the samples."""
        return torch.randperm(num_samples, device=self.device)

    def _mini_batches(self) -> list[Batch]:
        """Split the rollout. As in rsl_rl, every epoch has the same mini-batches, so samples are gathered once."""
        storage, count = self.storage, self.num_mini_batches
        if self._is_recurrent:
            return recurrent_mini_batches(storage, count, self._normalize)
        order = self._permutation(storage.num_transitions_per_env * storage.num_envs)
        advantages = storage.advantages.flatten()[order].view(count, -1)
        return shuffled_mini_batches(storage, order, self._normalize(advantages))

    def _normalize(self, advantages: torch.Tensor) -> torch.Tensor:
        """Normalize advantages, and sum the moments of observations over ranks, in at most one collective."""
        # Moments of the observations
        observations = self.storage.observations.flatten(0, 1)
        for moments in self._normalizers.values():
            moments.observe(observations)
        # Moments of the advantages
        rows = advantages if self._agent.advantage_normalization == "mini-batch" else advantages.reshape(1, -1)
        sums = advantage_moments(rows)
        # Sums over ranks
        shared = [] if self._agent.advantage_normalization == "rank" else [sums]
        if self.synchronizer.keeps_equal:
            shared += [moments.pending for moments in self._normalizers.values()]
        self.replicas.sum(shared)
        return normalize(rows, sums).view_as(advantages)

    def _make_step(self) -> Callable[[Batch], None]:
        if self._captures:
            return CapturedStep(self._backward, self._reduce, self._apply, self.device)
        return self._eager_step

    def _eager_step(self, batch: Batch) -> None:
        self._backward(batch)
        self._reduce()
        self._apply()

    def _backward(self, batch: Batch) -> None:
        """Compute this rank's gradients and KL divergence for a mini-batch, and store them in the buffer."""
        assert batch.observations is not None
        assert batch.actions is not None
        assert batch.old_actions_log_prob is not None
        assert batch.advantages is not None
        assert batch.values is not None
        assert batch.returns is not None
        assert batch.old_distribution_params is not None
        self._gradients.buffer.zero_()
        actor_memory, critic_memory = batch.hidden_states
        with precision(self.device, is_bf16=self.use_mixed_precision):
            # Policy. Only its mean is computed, because no actions are drawn here.
            obs = batch.observations
            others: dict[str, torch.Tensor] = {}  # losses of the extensions
            mean = self.actor(obs, masks=batch.masks, hidden_state=actor_memory)
            num_samples = len(batch.old_distribution_params[0])  # without mirrored ones, which come after them
            if self.symmetry is not None:
                others["symmetry"] = mirror_loss(self.symmetry, mean, num_samples)
                mean, obs = mean[: len(batch.actions)], obs[: len(batch.actions)]
            self._distribution.update(mean)
            log_prob = self._raw_actor.get_output_log_prob(batch.actions)
            old_log_prob, advantages = batch.old_actions_log_prob.squeeze(-1), batch.advantages.squeeze(-1)
            surrogate = surrogate_loss(log_prob, old_log_prob, advantages, self.clip_param)
            # Value function
            values = self.critic(obs, masks=batch.masks, hidden_state=critic_memory)
            clip = self.clip_param if self.use_clipped_value_loss else None
            value = value_loss(values, batch.values, batch.returns, clip)
            # KL divergence, which is not part of the loss
            params = tuple(p[:num_samples] for p in self._raw_actor.output_distribution_params)
            with torch.no_grad():
                kl = self._raw_actor.get_kl_divergence(batch.old_distribution_params, params).mean()
            entropy = self._raw_actor.output_entropy[:num_samples].mean()
            loss = surrogate + self.value_loss_coef * value - self.entropy_coef * entropy
            if self.symmetry is not None and self.symmetry.use_mirror_loss:
                loss = loss + self.symmetry.mirror_loss_coeff * others["symmetry"]
            # Prediction of the random network, without the padding of recurrent mini-batches
            if self.intrinsic is not None:
                seen = obs[:num_samples] if batch.masks is None else obs[batch.masks]
                others["rnd"] = self.intrinsic.rnd.compute_loss(seen)
                loss = loss + others["rnd"]
        loss.backward()
        self._gradients.extra.copy_(kl)
        self._totals[:-1] += torch.stack([value, surrogate, entropy, *others.values()]).detach()

    @torch.no_grad()
    def _round_old(self, batches: list[Batch]) -> None:
        """Replace results that the rollout computed in fp32 by results in the precision of the update.

        Otherwise, the KL divergence and the clipping would count the difference in rounding as a change of the policy
        and of the values.
        """
        for batch in batches:
            assert batch.actions is not None
            actor_memory, critic_memory = batch.hidden_states
            with precision(self.device, is_bf16=self.use_mixed_precision):
                mean = self.actor(batch.observations, masks=batch.masks, hidden_state=actor_memory)
                self._distribution.update(mean)
                batch.old_actions_log_prob = self._raw_actor.get_output_log_prob(batch.actions).unsqueeze(-1)
                values = self.critic(batch.observations, masks=batch.masks, hidden_state=critic_memory)
            params = self._raw_actor.output_distribution_params
            # Copies, because the standard deviation is a view of the parameter, which the next mini-batches change
            batch.old_distribution_params = tuple(p.to(torch.float32, copy=True) for p in params)
            batch.values = values.float()

    def _reduce(self) -> None:
        with self.clock.waiting():
            self.synchronizer.reduce(self._gradients.buffer)

    def _apply(self) -> None:
        """Update the parameters with the gradients and the KL divergence in the buffer."""
        # Learning rate, from the KL divergence over all ranks
        kl = self._gradients.extra
        self._totals[-1] += kl
        if self.schedule == "adaptive":
            adapt_rate(self.rate, kl, self.desired_kl)
        self._clip()
        # Optimizer steps
        for optimizer in self._optimizers:
            optimizer.step()
        self._distribution.project()

    def _clip(self) -> None:
        """Scale the gradients of the policy and those of the value function down to the maximum norm.

        This is what ``clip_grad_norm_`` does. As in rsl_rl, the gradients of the predictor are not clipped.
        """
        for gradients in self._gradients.groups[: len(self.models)]:
            gradients.mul_(self._clip_factor(gradients.dot(gradients)))

    def _clip_factor(self, squares: torch.Tensor) -> torch.Tensor:
        """Return the factor for gradients whose squares have this sum."""
        return (self.max_grad_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)


def make_ppo(config: TrainConfig, env: Env, synchronizer: Synchronizer) -> PPO:
    """Build the networks, the storage of a rollout, rsl_rl's extensions, and PPO."""
    agent, obs, device = config.agent, env.get_observations(), env.device
    assert isinstance(agent, PpoConfig)
    actor, critic = make_networks(agent, obs, env.num_actions, device)
    storage = RolloutStorage("rl", obs.batch_size[0], agent.num_steps_per_env, obs, [env.num_actions], device)
    kind = PPO
    if config.fsdp_devices > 1:
        from mjlab_dist.learn.sharded_ppo import ShardedPPO  # imports FSDP2, which takes half a second

        kind = ShardedPPO
    return kind(actor, critic, storage, config, env=env, synchronizer=synchronizer)
