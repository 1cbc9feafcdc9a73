"""The losses of soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), as in Stable-Baselines3."""

from __future__ import annotations

import torch


def target_values(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    next_values: torch.Tensor,
    next_log_prob: torch.Tensor,
    temperature: torch.Tensor,
) -> torch.Tensor:
    """Return the soft targets of the critics, (samples,).

    Args:
        rewards: Discounted sums of rewards up to the next state, (samples,).
        discounts: Weight of the next state's value, (samples,); 0 if the episode was terminated before it.
        next_values: Values of the target critics for the next state and an action of the policy, (2, samples).
        next_log_prob: Log-probability of this action, (samples,).
        temperature: Weight of the entropy, a scalar.
    """
    return rewards + discounts * (next_values.amin(dim=0) - temperature * next_log_prob)


def critic_loss(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return half of the mean squared error, summed over critics.

    Args:
        values: (2, samples).
        targets: (samples,).
    """
    return 0.5 * (values - targets).square().mean(dim=1).sum()


def actor_loss(values: torch.Tensor, log_prob: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the mean of the negative soft value.

    Args:
        values: Values of the critics for actions of the policy, (2, samples).
        log_prob: Log-probabilities of these actions, (samples,).
        temperature: Weight of the entropy, a scalar.
    """
    return (temperature * log_prob - values.amin(dim=0)).mean()


def temperature_loss(log_temperature: torch.Tensor, log_prob: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """Return the loss whose gradient raises the temperature while the entropy is below its target.

    Args:
        log_temperature: Logarithm of the temperature, a scalar.
        log_prob: Log-probabilities of the policy's actions, (samples,).
        target_entropy: Entropy of an action, in nats.
    """
    return -(log_temperature * (log_prob.detach() + target_entropy)).mean()
