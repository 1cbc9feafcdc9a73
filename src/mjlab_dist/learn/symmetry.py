"""Mirrored samples for rsl_rl's symmetry extension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from rsl_rl.extensions import Symmetry
from tensordict import TensorDict
from torch.nn.functional import mse_loss

from mjlab_dist.config import SymmetryConfig
from mjlab_dist.env import Env
from mjlab_dist.env.binding import import_term, naming
from mjlab_dist.errors import UserError
from mjlab_dist.learn.mini_batches import Batch
from mjlab_dist.wording import listed

FLAG = "--agent.symmetry.func"


def symmetry_cfg(config: SymmetryConfig, env: Env) -> dict[str, Any] | None:
    """Return the arguments of rsl_rl's Symmetry; None if it is not used."""
    if not config.is_used:
        return None
    assert config.func is not None
    func = import_term(FLAG, config.func)
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
