"""The losses of PPO, as in rsl_rl."""

from __future__ import annotations

import torch


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
