"""Checks and conversions of the arrays that users pass and receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mjlab_dist.errors import UserError


def checked_actions(what: str, actions: Any, shape: tuple[int, int], device: str) -> torch.Tensor:
    """Return actions as a float32 tensor on a device. Copy them only if necessary.

    Args:
        shape: The required shape, (num_envs, num_actions).
    """
    tensor = as_tensor(what, actions)
    if tuple(tensor.shape) != shape:
        raise UserError(f"{what}: wrong shape {tuple(tensor.shape)}; give (num_envs, num_actions), here {shape}")
    if not tensor.is_floating_point():
        given = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{what}: wrong type {given}; give floating-point numbers, such as float32")
    tensor = tensor.detach().to(device, torch.float32)
    finite = tensor.isfinite()
    if not finite.all():
        env, action = (~finite).nonzero()[0].tolist()
        raise UserError(f"{what}: action {action} of env {env} is {tensor[env, action].item()}; give finite numbers")
    return tensor


def as_tensor(what: str, array: Any) -> torch.Tensor:
    """Return an array as a tensor, which shares the array's memory if possible."""
    if isinstance(array, torch.Tensor):
        return array
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return torch.from_dlpack(array)
    try:
        if hasattr(array, "__array__"):
            return torch.from_numpy(np.asarray(array))
        if isinstance(array, Sequence) and not isinstance(array, str):
            return torch.from_numpy(np.asarray(array, dtype=np.float32))
    except (TypeError, ValueError):
        pass  # objects, or sequences of different lengths
    raise UserError(f"{what}: {type(array).__name__} is not an array of numbers; give a tensor or array")
