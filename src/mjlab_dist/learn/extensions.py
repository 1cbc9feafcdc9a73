"""rsl_rl's extensions of PPO: mirrored samples, and the intrinsic reward of random network distillation.

Intrinsic rewards are computed for a whole rollout, and their scale over all ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from rsl_rl.extensions import RandomNetworkDistillation, Symmetry
from rsl_rl.modules import EmpiricalDiscountedVariationNormalization
from tensordict import TensorDict
from torch.nn.functional import mse_loss

from mjlab_dist.config import RndConfig, SymmetryConfig
from mjlab_dist.env import Env
from mjlab_dist.env.binding import import_term, naming
from mjlab_dist.errors import UserError, listed
from mjlab_dist.imports import patched
from mjlab_dist.learn.update import Adam, Batch, linear, make_adam

FLAG = "--agent.symmetry.func"


def symmetry_cfg(config: SymmetryConfig, env: Env) -> dict[str, Any] | None:
    """Return the arguments of rsl_rl's Symmetry; None if it is not used."""
    if not config.is_used:
        return None
    assert config.func is not None
    func = import_term(FLAG, config.func)
    if isinstance(func, type):
        with naming("agent.symmetry", config.func):
            func = func(env)
    # Check the results for two made-up samples. The function gets copies, because it may change them by mistake
    shapes = {name: group.shape[1:] for name, group in env.get_observations().items()}
    given = {name: _made_up(shape, env.device) for name, shape in shapes.items()}
    actions = _made_up((env.num_actions,), env.device)
    with naming("agent.symmetry", config.func):
        obs, _ = func(env=env, obs=TensorDict({**given}, batch_size=[2]).clone(), actions=None)
        _, both_actions = func(env=env, obs=None, actions=actions.clone())
    found = obs if isinstance(obs, TensorDict) else TensorDict()
    rows = found.batch_size.numel()
    parts: dict[str, tuple[torch.Tensor, Any]]
    parts = {f"obs[{name!r}]": (one, found.get(name, None)) for name, one in given.items()}
    parts["actions"] = (actions, both_actions)
    wrong = [name for name, (one, both) in parts.items() if not _extends(both, one, rows)]
    if wrong:
        raise UserError(
            f"{FLAG} {config.func}: returns wrong {listed(wrong)}; return obs as a TensorDict with all groups, and "
            "actions as a tensor: the given rows, followed by as many mirrored rows of both"
        )
    return {
        "env": env,
        "data_augmentation_func": func,
        "use_data_augmentation": config.use_data_augmentation,
        "use_mirror_loss": config.mirror_loss_coef > 0,
        "mirror_loss_coeff": config.mirror_loss_coef,
    }


def _extends(both: Any, given: torch.Tensor, rows: int) -> bool:
    """Return whether the result of a function begins with the given rows, followed by mirrored ones."""
    if not isinstance(both, torch.Tensor) or both.shape != (rows, *given.shape[1:]) or rows < 4 or rows % 2:
        return False
    return bool((both[:2] == given).all().item())


def _made_up(shape: Sequence[int], device: str) -> torch.Tensor:
    """Return two rows of numbers that differ from each other and from 0."""
    return torch.arange(1.0, 1.0 + 2 * math.prod(shape), device=device).view(2, *shape)


def mirror(symmetry: Symmetry, batch: Batch) -> None:
    """Append mirrored samples to a mini-batch; for the mirror loss alone, only mirrored observations.

    rsl_rl does this in every epoch, with the same result.
    """
    assert batch.observations is not None
    if symmetry.use_data_augmentation:
        symmetry.augment_batch(batch, len(batch.observations))
    else:
        batch.observations, _ = symmetry.data_augmentation_func(env=symmetry.env, obs=batch.observations, actions=None)


def mirror_loss(symmetry: Symmetry, means: torch.Tensor, num_samples: int) -> torch.Tensor:
    """Return rsl_rl's mirror loss, without evaluating the policy again.

    Args:
        symmetry: The extension.
        means: Mean actions in the samples, followed by those in the mirrored samples, (rows, num_actions).
        num_samples: Number of samples that are not mirrored.
    """
    own = means[:num_samples].detach()
    _, mirrored = symmetry.data_augmentation_func(env=symmetry.env, obs=None, actions=own)
    return mse_loss(means[num_samples:], mirrored[num_samples:])


class IntrinsicReward:
    """Computes the intrinsic rewards of a rollout with the networks of rsl_rl's random network distillation.

    rsl_rl updates the normalizer of these rewards in every control step. The networks do not change during a rollout.
    Therefore, one sum over ranks at its end leads to the same result.

    Attributes:
        rnd: The networks, and the normalizer of their input.
        parameters: The parameters that are learned, those of the predictor.
        optimizer: The optimizer of these parameters.
        discounted: Discounted sum of each env's rewards before normalization, (num_envs,).
        pending: For each step of the rollout, the count of ``discounted``, the sum of its deviations from the
            normalizer's mean, and the sum of their squares, (num_steps, 3) in fp64, to be summed over ranks. Without a
            normalizer, (0, 3).
        mean: Mean of the last rollout's rewards over this rank's envs, a scalar.
    """

    def __init__(self, config: RndConfig, observations: TensorDict, unit: float) -> None:
        """Build the networks.

        Args:
            config: The config. Its weights are multiplied by ``unit``.
            observations: Observations of a rollout, (num_steps, num_envs, ...); only their sizes are used.
            unit: Factor of the weights.
        """
        device = str(observations.device)
        group = "rnd_state" if "rnd_state" in set(observations.keys()) else "actor"
        # The optimizer that rsl_rl creates is replaced, but torch's Adam would import torch's compiler
        with patched(torch.optim, "Adam", Adam):
            self.rnd = RandomNetworkDistillation(
                num_states=observations[group].shape[-1],
                obs_groups={"rnd_state": [group]},
                num_outputs=config.num_outputs,
                predictor_hidden_dims=config.predictor_hidden_dims,
                target_hidden_dims=config.target_hidden_dims,
                activation=config.activation,
                state_normalization=config.state_normalization,
                reward_normalization=config.reward_normalization,
                device=device,
            )
        self.rnd.target.requires_grad_(False)
        self.parameters = list(self.rnd.predictor.parameters())
        self.optimizer = make_adam(self.parameters, torch.tensor(config.learning_rate, device=device))
        final = config.weight if config.final_weight is None else config.final_weight
        self._weights = (unit * config.weight, unit * final)
        self._weight = self._weights[0]
        self._learning_rate = config.learning_rate
        normalizer = self.rnd.reward_normalizer
        self._normalizer = normalizer if isinstance(normalizer, EmpiricalDiscountedVariationNormalization) else None
        num_steps, num_envs = observations.shape
        self.discounted = torch.zeros(num_envs, device=device)
        self.pending = torch.zeros(0, 3, dtype=torch.float64, device=device)
        self.mean = torch.zeros((), device=device)
        self._rewards = torch.zeros(num_steps, num_envs, device=device)

    def begin_iteration(self, iteration: int, num_iterations: int) -> None:
        """Set the weight and the predictor's learning rate for an iteration."""
        self._weight = linear(*self._weights, iteration, num_iterations)
        self.optimizer.param_groups[0]["lr"].fill_(self._learning_rate)

    def memory(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs to this rank alone."""
        return {} if self._normalizer is None else {"intrinsic": self.discounted}

    def moments(self) -> dict[str, torch.Tensor]:
        """Return the normalizer's own tensors, which are equal on all ranks."""
        return {} if self._normalizer is None else self._normalizer.emp_norm.state_dict()

    def observe(self, before: TensorDict, last: TensorDict) -> None:
        """Compute the rewards of a rollout.

        Args:
            before: Observations before each step, (num_steps, num_envs, ...).
            last: Observations after the last step, (num_envs, ...).
        """
        # Rewards, from the observations after each step
        after = [self.rnd.get_rnd_state(before)[1:], self.rnd.get_rnd_state(last).unsqueeze(0)]
        states = self.rnd.state_normalizer(torch.cat(after))
        self._rewards = torch.linalg.norm(self.rnd.target(states) - self.rnd.predictor(states), dim=-1)
        if self._normalizer is None:
            return
        # Moments of their discounted sums
        gamma = self._normalizer.disc_avg.gamma
        sums = [self.discounted.mul_(gamma).add_(row).to(torch.float64, copy=True) for row in self._rewards]
        deviation = torch.stack(sums) - self.moments()["_mean"]
        count = torch.full_like(deviation[:, 0], deviation.shape[1])
        self.pending = torch.stack([count, deviation.sum(dim=1), deviation.square().sum(dim=1)], dim=1)

    def apply(self) -> torch.Tensor:
        """Update the normalizer with the pending sums, which must already be summed over ranks.

        Returns:
            The weighted rewards, (num_steps, num_envs).
        """
        rewards = self._rewards
        if self._normalizer is not None:
            buffers = self.moments()
            count, mean, var = (buffers[name].double() for name in ("count", "_mean", "_var"))
            # As in rsl_rl, the normalizer stays as it is after this number of rewards
            limit = self._normalizer.emp_norm.until
            assert limit is not None
            before = count + _running_sums(self.pending)[:, 0] - self.pending[:, 0]
            added, total, squares = _running_sums(self.pending * (before < limit).unsqueeze(1)).unbind(dim=1)
            # Moments after each step
            counts = count + added
            shift = total / counts
            variances = ((count * var + squares) / counts - shift.square()).clamp(min=0)
            std = variances.sqrt().to(rewards.dtype)
            rewards = torch.where(std.unsqueeze(1) > 0, rewards / std.unsqueeze(1), rewards)
            # Moments after the last step
            after = {"count": counts, "_mean": mean + shift, "_var": variances, "_std": std}
            for name, buffer in buffers.items():
                buffer.copy_(after[name][-1])
        rewards = self._weight * rewards
        self.mean.copy_(rewards.mean())
        return rewards


def _running_sums(rows: torch.Tensor) -> torch.Tensor:
    """Return the sums of the first rows. On a GPU, the results of torch's cumsum differ between calls and ranks."""
    return torch.stack(list(itertools.accumulate(rows)))
