"""A function for symmetry that returns wrong samples is refused before the training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rollouts import AGENT, made_up_env, mirrored
from tensordict import TensorDict

from mjlab_dist.config import SymmetryConfig
from mjlab_dist.errors import UserError
from mjlab_dist.learn.extensions import symmetry_cfg


def only_mirrored(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return both[len(obs) :] if obs is not None and both is not None else None, both_actions


def mirrored_first(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, _ = mirrored(env, obs, None)
    return both, None if actions is None else torch.cat([-actions, actions, actions, actions])


def fewer_actions(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, _ = mirrored(env, obs, None)
    return both, None if actions is None else torch.cat([actions, -actions])


def wider(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return both, None if both_actions is None else torch.cat([both_actions, both_actions], dim=-1)


def changes_its_input(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    _, both_actions = mirrored(env, None, actions)
    if obs is None:
        return None, both_actions
    opposite = obs
    for name in obs.keys():  # noqa: SIM118 (a TensorDict iterates over rows)
        opposite[name] = obs[name].mul_(-1)
    return torch.cat([obs, opposite, obs, opposite]), both_actions


def only_actor(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return None if both is None else both.select("actor"), both_actions


def a_dict(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = mirrored(env, obs, actions)
    return None if both is None else both.to_dict(), both_actions


def without_batch_size(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    both, both_actions = a_dict(env, obs, actions)
    return None if both is None else TensorDict(both), both_actions


def no_actions(env: Any, obs: TensorDict | None, actions: torch.Tensor | None) -> tuple[Any, Any]:
    return mirrored(env, obs, actions)[0], None


@pytest.mark.parametrize(
    ("func", "named"),
    [
        (only_mirrored, "'actor'"),
        (mirrored_first, "actions"),
        (fewer_actions, "actions"),
        (wider, "actions"),
        (changes_its_input, "'actor'"),
        (only_actor, "'critic'"),
        (a_dict, "'actor'"),
        (without_batch_size, "'actor'"),
        (no_actions, "actions"),
    ],
)
def test_wrong_samples_are_refused(func: Any, named: str) -> None:
    config = SymmetryConfig(func=f"{__name__}:{func.__name__}", use_data_augmentation=True)
    with pytest.raises(UserError, match=rf"^--agent\.symmetry\.func \S+: returns wrong [^;]*{named}.*;"):
        symmetry_cfg(config, made_up_env(8))


def test_a_function_that_cannot_be_called_is_named() -> None:
    config = SymmetryConfig(func="math:sin", mirror_loss_coef=1.0)
    with pytest.raises(TypeError) as caught:
        symmetry_cfg(config, made_up_env(8))
    assert "agent.symmetry" in "".join(caught.value.__notes__)


def test_symmetry_is_off_by_default() -> None:
    assert symmetry_cfg(AGENT.symmetry, made_up_env(8)) is None
