"""rsl_rl's PPO with an update that is the same at any world size, and one collective a mini-batch."""

from __future__ import annotations

import inspect
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

from mjlab_dist.config import AgentConfig, TrainConfig
from mjlab_dist.distributed.group import sum_over_ranks, world_size
from mjlab_dist.distributed.sharding import Sharding
from mjlab_dist.distributed.synchronizer import FORMATS, Synchronizer
from mjlab_dist.learn.capture import CapturedCall, CapturedStep
from mjlab_dist.learn.clock import Clock
from mjlab_dist.learn.distribution import BoundedGaussian
from mjlab_dist.learn.gradients import FlatGradients
from mjlab_dist.learn.moments import NormalizerMoments, RewardScale, advantage_moments, normalize
from mjlab_dist.learn.networks import make_networks
from mjlab_dist.patching import patched

MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 1e-2
"""Range of the adaptive learning rate, as in rsl_rl."""

Batch = RolloutStorage.Batch


class Adam(torch.optim.Adam):
    """Torch's Adam without the wrappers around its methods for torch.compile, which import all of torch's compiler."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class PPO(rsl_rl.algorithms.PPO):
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347) over all ranks.

    Losses and schedule are rsl_rl's. Advantages and observations are normalized by moments over all ranks, gradients are
    averaged together with the KL divergence and clipped afterwards, and nothing waits for the device: the learning rate is a
    tensor that the optimizer reads. Recurrent models are the exception: rsl_rl cuts their mini-batches into episodes, whose sizes
    depend on the data.

    rsl_rl's extensions (random network distillation, symmetry) are not part of this update.

    Attributes:
        synchronizer: What happens to gradients between backward and optimizer step.
        sharding: Which parameters are spread over ranks.
        clock: Counts the time spent in collectives.
        rate: The learning rate, a scalar tensor.
    """

    def __init__(
        self,
        actor: MLPModel,
        critic: MLPModel,
        storage: RolloutStorage,
        config: TrainConfig,
        *,
        synchronizer: Synchronizer,
        device: str,
    ) -> None:
        """Build the optimizer and the buffers of the update.

        Args:
            actor: The policy.
            critic: The value function.
            storage: Holds a rollout.
            config: The run's config.
            synchronizer: How gradients are reduced.
            device: ``cpu`` or ``cuda:<index>``.
        """
        agent = config.agent
        # rsl_rl's constructor sets learning_rate, which is stored here.
        self.rate = torch.zeros((), device=device)
        # It also creates an optimizer, and torch's own Adam would import torch's compiler.
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
                # rsl_rl then leaves advantages as they are: update() normalizes them, with the moments of all ranks.
                normalize_advantage_per_mini_batch=True,
                use_mixed_precision=agent.precision == "bf16",
                device=device,
            )
        self.synchronizer = synchronizer
        self.clock = Clock(device)
        self._advantage_normalization = agent.advantage_normalization
        self._models = {"actor": self._raw_actor, "critic": self._raw_critic}
        self._is_recurrent = actor.is_recurrent or critic.is_recurrent
        self._share_parameters(config)
        self._add_moments(agent)
        self._capture_programs(agent)

    def _share_parameters(self, config: TrainConfig) -> None:
        """Start all ranks from rank 0's parameters, shard large ones, and create gradients and optimizer."""
        if world_size() > 1:
            self.broadcast_parameters()  # every rank has drawn its own; sharding below takes parts of rank 0's
        compression = FORMATS[config.sync.compression]
        self.sharding = Sharding(self._models, config.fsdp_devices, config.fsdp_min_size_mb, self.device, compression)
        self._parameters = list(chain.from_iterable(model.parameters() for model in self._models.values()))
        self._gradients = FlatGradients(
            [[p for p in model.parameters() if id(p) not in self.sharding.sharded] for model in self._models.values()],
            self.device,
        )
        self.optimizer = Adam(
            [self.sharding.optimized(p) for p in self._parameters],
            lr=self.rate,
            fused=True,
            capturable=self.device != "cpu",
        )

    def _add_moments(self, agent: AgentConfig) -> None:
        """Create the running moments of observations and rewards, and the sums of the losses."""
        self._normalizers = {
            name: NormalizerMoments(model.obs_normalizer)
            for name, model in self._models.items()
            if isinstance(model.obs_normalizer, EmpiricalNormalization)
        }
        scales = agent.reward_normalization
        self._reward_scale = RewardScale(self.storage.num_envs, self.gamma, self.device) if scales else None
        self._raw_rewards = torch.zeros_like(self.storage.rewards) if scales else torch.empty(0)
        self._totals = torch.zeros(4, device=self.device)

    def _capture_programs(self, agent: AgentConfig) -> None:
        """Wrap what can be recorded in CUDA graphs."""
        # Sizes of a recurrent mini-batch depend on the data, and FSDP2 allocates whole parameters in every forward.
        can_capture = self.device != "cpu" and not self._is_recurrent and not self.sharding.sharded
        self._captures = agent.capture and can_capture
        self._step = self._make_step()
        returns = super().compute_returns
        self._compute_returns: Callable[[TensorDict], None] = (
            CapturedCall(returns, "the computation of returns", self.device) if self._captures else returns
        )

    @property
    def _distribution(self) -> BoundedGaussian:
        assert isinstance(self._raw_actor.distribution, BoundedGaussian)
        return self._raw_actor.distribution

    def action_std(self) -> torch.Tensor:
        """Return the standard deviation of the actions after the last update, a mean over actions."""
        return self._distribution.current_std().detach().mean()

    @property
    def num_parameters(self) -> int:
        """Numbers in policy and value, over all ranks that share them."""
        return sum(p.numel() for p in self._parameters)

    @property
    def learning_rate(self) -> float:
        """The learning rate; reading it waits for the device."""
        return self.rate.item()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.rate.fill_(value)

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, torch.Tensor]
    ) -> None:
        """Record a step; arguments as rsl_rl's."""
        if self._reward_scale is not None:
            self._raw_rewards[self.storage.step] = rewards.unsqueeze(1)
            self._reward_scale.observe(rewards, dones)
        super().process_env_step(obs, rewards, dones, extras)

    def compute_returns(self, obs: TensorDict) -> None:
        """From rewards and values to returns and advantages; arguments as rsl_rl's."""
        if self._reward_scale is not None:
            self._sum([self._reward_scale.pending])
            # What time-outs have added are values, which are of scaled rewards already.
            self.storage.rewards += self._raw_rewards * (self._reward_scale.apply() - 1.0)
        self._compute_returns(obs)

    def update(self) -> dict[str, torch.Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Learn from the rollout in the storage.

        Returns:
            Means over mini-batches, as scalar tensors of this rank: ``value``, ``surrogate``, ``entropy``, and ``kl``, the KL
            divergence that the learning rate adapted to.
        """
        batches = self._mini_batches()
        self._totals.zero_()
        for _ in range(self.num_learning_epochs):
            for batch in batches:
                self._step(batch)
        for moments in self._normalizers.values():
            moments.apply()
            if self.synchronizer.keeps_equal:
                moments.rebase()
        self.storage.clear()
        means = self._totals / (self.num_learning_epochs * self.num_mini_batches)
        return dict(zip(("value", "surrogate", "entropy", "kl"), means.unbind(), strict=True))

    def average(self) -> torch.Tensor:
        """Give every rank the mean of all ranks' parameters, Adam moments and learning rates, and all their observations.

        Returns:
            The sum over parameters of this rank's squared distances from the mean, a scalar.
        """
        before = torch.cat([p.detach().flatten() for p in self._parameters])
        moments = [state[key] for state in self.optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
        tensors = [*(p.detach() for p in self._parameters), *moments, self.rate]
        for tensor in tensors:
            tensor.div_(world_size())
        self._sum(tensors)
        self._sum([moments.pending for moments in self._normalizers.values()])
        for normalizer in self._normalizers.values():
            normalizer.apply()
            normalizer.rebase()
        return (before - torch.cat([p.detach().flatten() for p in self._parameters])).square().sum()

    def save(self) -> dict[str, Any]:
        """Whole tensors in rsl_rl's layout, which it can load as they are; a collective where parameters are sharded."""
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {
            i: {key: t if key == "step" else self.sharding.whole(self._parameters[i], t) for key, t in state.items()}
            for i, state in optimizer["state"].items()
        }
        for group in optimizer["param_groups"]:
            group.update(lr=self.learning_rate, fused=None, capturable=False)
        states = {f"{name}_state_dict": self.sharding.whole_state(model) for name, model in self._models.items()}
        scale = {} if self._reward_scale is None else {"reward_sums": self._reward_scale.sums}
        return {**states, "optimizer_state_dict": optimizer, **scale}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:
        """Take over what :meth:`save` or rsl_rl's own wrote; arguments and result as rsl_rl's."""
        chosen = load_cfg or dict.fromkeys(("actor", "critic", "optimizer", "iteration"), True)
        for name, model in self._models.items():
            if chosen.get(name):
                self.sharding.load_state(model, loaded_dict[f"{name}_state_dict"], strict)
        self._distribution.project()  # min_std may have been lower when this was saved
        for normalizer in self._normalizers.values():
            normalizer.rebase()
        if self._reward_scale is not None and "reward_sums" in loaded_dict:
            self._reward_scale.sums.copy_(loaded_dict["reward_sums"])
        if chosen.get("optimizer"):
            self._load_optimizer(loaded_dict["optimizer_state_dict"])
        return chosen.get("iteration", False)

    def memory(self) -> dict[str, torch.Tensor]:
        """What the learner remembers of this rank's envs.

        Returns:
            Of recurrent policy and value (layers, num_envs, width) each; of rewards that are normalized ``reward``, (num_envs,).
        """
        sums = {} if self._reward_scale is None else {"reward": self._reward_scale.discounted}
        states = {name: model.get_hidden_state() for name, model in self._models.items()}
        return sums | {
            f"{name}/{i}": part
            for name, state in states.items()
            for i, part in enumerate(state if isinstance(state, tuple) else (state,))
            if part is not None
        }

    def load_memory(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Have the learner remember.

        Args:
            memory: What :meth:`memory` returned.
        """
        if self._reward_scale is not None:
            self._reward_scale.discounted.copy_(memory["reward"])
        for name, model in self._models.items():
            match [memory[key].to(self.device) for key in sorted(memory) if key.startswith(f"{name}/")]:
                case [hidden, cell]:
                    model.reset(hidden_state=(hidden, cell))
                case [hidden]:
                    model.reset(hidden_state=hidden)

    def _load_optimizer(self, whole: dict[str, Any]) -> None:
        (own,) = self.optimizer.param_groups
        (group,) = whole["param_groups"]
        self.learning_rate = float(group["lr"])
        state = {
            index: {key: t if key == "step" else self.sharding.part(self._parameters[index], t) for key, t in s.items()}
            for index, s in whole["state"].items()
        }
        group = {**group, "lr": self.rate, "fused": own["fused"], "capturable": own["capturable"]}
        self.optimizer.load_state_dict({"state": state, "param_groups": [group]})
        # Loading copies; the learning rate has to stay the tensor that the update writes to.
        self.optimizer.param_groups[0]["lr"] = self.rate
        self._step = self._make_step()  # what was recorded holds the old tensors

    def _permutation(self, num_samples: int) -> torch.Tensor:
        """The order in which samples fall into mini-batches."""
        return torch.randperm(num_samples, device=self.device)

    def _mini_batches(self) -> list[Batch]:
        """The rollout in mini-batches, the same in every epoch as in rsl_rl, so that samples are gathered once."""
        storage, count = self.storage, self.num_mini_batches
        steps, envs = storage.num_transitions_per_env, storage.num_envs
        if self._is_recurrent:  # whole envs, for their memory's sake
            rows = storage.advantages.view(steps, count, -1).transpose(0, 1)
            rows = self._normalize(rows.reshape(count, -1)).view(count, steps, -1)
            storage.advantages = rows.transpose(0, 1).reshape(steps, envs, 1)
            return list(storage.recurrent_mini_batch_generator(count, 1))
        order = self._permutation(steps * envs)
        size = len(order) // count

        def shuffled(samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return samples.flatten(0, 1)[order].split(size)

        assert storage.distribution_params is not None
        observations: list[TensorDict] = storage.observations.flatten(0, 1)[order].split(size)
        advantages = self._normalize(storage.advantages.flatten()[order].view(count, size))
        params = [shuffled(p) for p in storage.distribution_params]
        tensors = (storage.actions, storage.values, storage.returns, storage.actions_log_prob)
        return [
            Batch(
                observations=observations[i],
                actions=actions,
                values=values,
                advantages=advantages[i].unsqueeze(-1),
                returns=returns,
                old_actions_log_prob=log_prob,
                old_distribution_params=tuple(p[i] for p in params),
            )
            for i, (actions, values, returns, log_prob) in enumerate(zip(*map(shuffled, tensors), strict=True))
        ]

    def _normalize(self, advantages: torch.Tensor) -> torch.Tensor:
        """Normalize advantages and take note of the observations, by one collective at most.

        Args:
            advantages: (mini-batches, samples).
        """
        observations = self.storage.observations.flatten(0, 1)
        for name, moments in self._normalizers.items():
            model = self._models[name]
            moments.observe(torch.cat([observations[group] for group in model.obs_groups], dim=-1))
        rows = advantages if self._advantage_normalization == "mini-batch" else advantages.reshape(1, -1)
        sums = advantage_moments(rows)
        shared = [] if self._advantage_normalization == "rank" else [sums]
        if self.synchronizer.keeps_equal:
            shared += [moments.pending for moments in self._normalizers.values()]
        self._sum(shared)
        return normalize(rows, sums).view_as(advantages)

    def _sum(self, tensors: list[torch.Tensor]) -> None:
        """Sum tensors of one type over ranks, in place, by one collective."""
        if not tensors or world_size() == 1:
            return
        with self.clock.waiting():
            total = sum_over_ranks(torch.cat([t.flatten() for t in tensors]))
        for tensor, part in zip(tensors, total.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def _make_step(self) -> Callable[[Batch], None]:
        if self._captures:
            return CapturedStep(self._backward, self._reduce, self._apply, self.device)
        return self._eager_step

    def _eager_step(self, batch: Batch) -> None:
        self._backward(batch)
        self._reduce()
        self._apply()

    def _backward(self, batch: Batch) -> None:
        """From a mini-batch to this rank's gradients and KL divergence, in the buffer."""
        self._gradients.buffer.zero_()
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.use_mixed_precision):
            surrogate, value, entropy, kl = self._losses(batch)
            loss = surrogate + self.value_loss_coef * value - self.entropy_coef * entropy
        loss.backward()
        self._gradients.extra.copy_(kl)
        self._totals[:3] += torch.stack([value, surrogate, entropy]).detach()

    def _losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        assert batch.observations is not None
        assert batch.actions is not None
        assert batch.old_actions_log_prob is not None
        assert batch.advantages is not None
        assert batch.old_distribution_params is not None
        actor_memory, critic_memory = batch.hidden_states
        # Asked for the mean, the policy draws no actions that nobody takes.
        mean = self.actor(batch.observations, masks=batch.masks, hidden_state=actor_memory)
        self._distribution.update(mean)
        ratio = torch.exp(self._raw_actor.get_output_log_prob(batch.actions) - batch.old_actions_log_prob.squeeze(-1))
        advantages = batch.advantages.squeeze(-1)
        clipped = ratio.clamp(1.0 - self.clip_param, 1.0 + self.clip_param)
        surrogate = torch.max(-advantages * ratio, -advantages * clipped).mean()
        values = self.critic(batch.observations, masks=batch.masks, hidden_state=critic_memory)
        with torch.no_grad():
            params = self._raw_actor.output_distribution_params
            kl = self._raw_actor.get_kl_divergence(batch.old_distribution_params, params).mean()
        return surrogate, self._value_loss(batch, values), self._raw_actor.output_entropy.mean(), kl

    def _value_loss(self, batch: Batch, values: torch.Tensor) -> torch.Tensor:
        assert batch.values is not None
        assert batch.returns is not None
        errors = (values - batch.returns).square()
        if not self.use_clipped_value_loss:
            return errors.mean()
        clipped = batch.values + (values - batch.values).clamp(-self.clip_param, self.clip_param)
        return torch.max(errors, (clipped - batch.returns).square()).mean()

    def _reduce(self) -> None:
        with self.clock.waiting():
            self.synchronizer.reduce(self._gradients.buffer)

    def _apply(self) -> None:
        """From gradients and KL divergence in the buffer to the next parameters."""
        kl = self._gradients.extra
        self._totals[3] += kl
        if self.schedule == "adaptive":
            self._adapt_rate(kl)
        for name, gradients in zip(self._models, self._gradients.groups, strict=True):
            self._clip(gradients, self.sharding.collect_gradients(f"{name}."))
        self.optimizer.step()
        self._distribution.project()

    def _adapt_rate(self, kl: torch.Tensor) -> None:
        """rsl_rl's rule, without asking the device: a third down where the policy moved too far, half up where too little."""
        slower = (self.rate / 1.5).clamp(min=MIN_LEARNING_RATE)
        faster = (self.rate * 1.5).clamp(max=MAX_LEARNING_RATE)
        too_near = (kl < self.desired_kl / 2.0) & (kl > 0.0)
        rate = torch.where(kl > self.desired_kl * 2.0, slower, torch.where(too_near, faster, self.rate))
        self.rate.copy_(rate)

    def _clip(self, gradients: torch.Tensor, parts: list[torch.Tensor]) -> None:
        """Scale one model's gradients down to the maximal norm, as ``clip_grad_norm_``.

        Args:
            gradients: Those of parameters that every rank has whole, flat.
            parts: Of sharded parameters, this rank's parts.
        """
        squares = gradients.dot(gradients)
        if parts:
            squares += self.sharding.sum_over_shards(torch.stack([g.square().sum() for g in parts]).sum())
        factor = (self.max_grad_norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in (gradients, *parts):
            gradient.mul_(factor)


def flatten(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All tensors of what :meth:`PPO.save` returns, by names that people know.

    Args:
        state: Policy, value and optimizer.
    """
    models = {f"{name}.{key}": t for name in ("actor", "critic") for key, t in state[f"{name}_state_dict"].items()}
    optimizer = state["optimizer_state_dict"]
    moments = {f"optimizer.{key}[{i}]": t for i, s in optimizer["state"].items() for key, t in s.items()}
    rates = {"learning_rate": torch.tensor([group["lr"] for group in optimizer["param_groups"]])}
    device = next(iter(models.values())).device
    scale = {"reward_sums": state["reward_sums"]} if "reward_sums" in state else {}
    return {name: t.to(device) for name, t in {**models, **moments, **rates, **scale}.items()}


def make_ppo(config: TrainConfig, obs: TensorDict, num_actions: int, synchronizer: Synchronizer, device: str) -> PPO:
    """Build the networks, the storage of a rollout, and PPO.

    Args:
        config: The run's config.
        obs: Observations by group, as the env returns them.
        num_actions: Number of actions.
        synchronizer: How gradients are reduced.
        device: ``cpu`` or ``cuda:<index>``.
    """
    actor, critic = make_networks(config.agent, obs, num_actions, device)
    num_envs, num_steps = obs.batch_size[0], config.agent.num_steps_per_env
    storage = RolloutStorage("rl", num_envs, num_steps, obs, [num_actions], device)
    return PPO(actor, critic, storage, config, synchronizer=synchronizer, device=device)
