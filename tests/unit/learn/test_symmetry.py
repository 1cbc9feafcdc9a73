"""A function for symmetry that returns wrong samples is refused before the training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollouts import AGENT, made_up_env, mirrored
from tensordict import TensorDict

from mjlab_dist.config import SymmetryConfig
from mjlab_dist.errors import UserError
from mjlab_dist.learn.symmetry import symmetry_cfg


def only_mirrored(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return both[len(obs) :] if obs is not None and both is not None else None, both_actions


def mirrored_first(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, _ = mirrored(env, obs, None)
    return both, None if actions is None else torch.cat([-actions, actions, actions])


def fewer_actions(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, _ = mirrored(env, obs, None)
    return both, None if actions is None else torch.cat([actions, -actions])


def wider(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return both, None if both_actions is None else torch.cat([both_actions, both_actions], dim=-1)


@pytest.mark.parametrize(
    ("func", "named"),
    [
        (only_mirrored, "the group actor of obs"),
        (mirrored_first, "actions"),
        (fewer_actions, "rows"),
        (wider, "actions"),
    ],
)
def test_wrong_samples_are_refused(func: Any, named: str) -> None:
    config = SymmetryConfig(func=f"{__name__}:{func.__name__}", use_data_augmentation=True)
    with pytest.raises(UserError, match=rf"^--agent\.symmetry\.func \S+: .*{named}"):
        symmetry_cfg(config, made_up_env(8))


def test_a_function_that_cannot_be_called_is_named() -> None:
    config = SymmetryConfig(func="math:sin", mirror_loss_coef=1.0)
    with pytest.raises(TypeError) as caught:
        symmetry_cfg(config, made_up_env(8))
    assert "agent.symmetry" in "".join(caught.value.__notes__)


def test_symmetry_is_off_by_default() -> None:
    assert symmetry_cfg(AGENT.symmetry, made_up_env(8)) is None
