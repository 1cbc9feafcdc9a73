"""The losses of soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), as in Stable-Baselines3."""

from __future__ import annotations

import torch
from torch.nn import functional


def target_values(
    rewards: torch.Tensor,
    discounts: torch.Tensor,
    next_values: torch.Tensor,
    next_log_prob: torch.Tensor,
    temperature: torch.Tensor,
) -> torch.Tensor:
    """Return the soft targets of the critics, (samples, outputs).

    Args:
        rewards: Discounted sums of rewards up to the next state, (samples,).
        discounts: Weight of the next state's value, (samples,); 0 if the episode was terminated before it.
        next_values: Outputs of the target critics for the next state and an action of the policy, (2, samples,
            outputs). The lower critic counts, for each quantile on its own (Ma et al. 2020, arXiv:2004.14547).
        next_log_prob: Log-probability of this action, (samples,).
        temperature: Weight of the entropy, a scalar.
    """
    rewards = rewards - discounts * temperature * next_log_prob
    return torch.addcmul(rewards.unsqueeze(-1), discounts.unsqueeze(-1), next_values.amin(dim=0))


def critic_loss(values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of single outputs, half of their mean squared error, or of quantiles; summed over critics.

    The loss of quantiles is that of quantile regression with errors as in Huber's loss, summed over a critic's
    quantiles (Dabney et al. 2018, arXiv:1710.10044).

    Args:
        values: (2, samples, outputs).
        targets: (samples, outputs).
    """
    outputs = values.shape[-1]
    if outputs == 1:
        return 0.5 * (values - targets).square().mean(dim=1).sum()
    levels = (torch.arange(outputs, device=values.device) + 0.5) / outputs
    # (2, samples, outputs of the targets, outputs of the critic)
    values, targets = torch.broadcast_tensors(values.unsqueeze(-2), targets.unsqueeze(-1))
    weights = (levels - (targets < values).float()).abs()
    errors = functional.huber_loss(values, targets, reduction="none")
    return (weights * errors).sum(dim=-1).mean(dim=(1, 2)).sum()


def actor_loss(values: torch.Tensor, log_prob: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the mean of the negative soft value.

    Args:
        values: Outputs of the critics for actions of the policy, (2, samples, outputs).
        log_prob: Log-probabilities of these actions, (samples,).
        temperature: Weight of the entropy, a scalar.
    """
    return temperature * log_prob.mean() - values.amin(dim=0).mean()


def temperature_loss(log_temperature: torch.Tensor, log_prob: torch.Tensor, target_entropy: float) -> torch.Tensor:
    """Return the loss whose gradient raises the temperature while the entropy is below its target.

    Args:
        log_temperature: Logarithm of the temperature, a scalar.
        log_prob: Log-probabilities of the policy's actions, (samples,).
        target_entropy: Entropy of an action, in nats.
    """
    return -(log_temperature * (log_prob.detach() + target_entropy)).mean()
