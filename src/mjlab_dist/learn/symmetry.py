"""Mirrored samples for rsl_rl's symmetry extension."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.extensions import Symmetry
from torch.nn.functional import mse_loss

from mjlab_dist.config import SymmetryConfig
from mjlab_dist.env import Env
from mjlab_dist.env.binding import import_term
from mjlab_dist.errors import UserError
from mjlab_dist.learn.mini_batches import Batch

FLAG = "--agent.symmetry.func"


def symmetry_cfg(config: SymmetryConfig, env: Env) -> dict[str, Any] | None:
    """Return the arguments of rsl_rl's Symmetry; None if it is not used."""
    if not config.is_used:
        return None
    assert config.func is not None
    mirror = import_term(FLAG, config.func)
    # Check the results for the current observations
    obs, actions = env.get_observations(), torch.ones(env.num_envs, env.num_actions, device=env.device)
    both, both_actions = mirror(env=env, obs=obs, actions=actions)
    pairs: list[tuple[str, Any, Any]] = [(f"the group {name} of obs", group, both[name]) for name, group in obs.items()]
    lengths = set()
    for name, given, got in (*pairs, ("actions", actions, both_actions)):
        copies, rest = divmod(len(got), len(given))
        if copies < 2 or rest or got.shape[1:] != given.shape[1:] or not torch.equal(got[: len(given)], given):
            raise UserError(
                f"{FLAG} {config.func}: {name}, of shape {tuple(given.shape)}, becomes {tuple(got.shape)}; return the "
                "given rows, followed by as many mirrored rows, or by several times as many"
            )
        lengths.add(len(got))
    if len(lengths) > 1:
        raise UserError(f"{FLAG} {config.func}: returns {sorted(lengths)} rows; return the same number for all")
    return {
        "env": env,
        "data_augmentation_func": mirror,
        "use_data_augmentation": config.use_data_augmentation,
        "use_mirror_loss": config.mirror_loss_coef > 0,
        "mirror_loss_coeff": config.mirror_loss_coef,
    }


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
