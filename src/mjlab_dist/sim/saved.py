"""Load a saved state, which may come from a damaged or hostile file."""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import torch

from mjlab_dist.errors import UserError

Limits = tuple[float | torch.Tensor, float | torch.Tensor]
"""Minimum and maximum of a tensor of the state, both allowed; infinite for no limit."""


def limits_of(model: mujoco.MjModel) -> dict[str, Limits]:
    """Return the limits of the fields of MuJoCo Warp's data that are state and that it uses as indices."""
    # The second number of each buffer is the index of its newest sample.
    low, high = (torch.full((model.nhistory,), bound) for bound in (-math.inf, math.inf))
    for kind in ("actuator", "sensor"):
        starts, sizes = getattr(model, f"{kind}_historyadr"), getattr(model, f"{kind}_history")
        for start, (num_samples, _) in zip(starts, sizes, strict=True):
            if num_samples > 0:
                low[start + 1], high[start + 1] = 0, num_samples - 1
    return {
        "history": (low, high),
        "overflow": (-math.inf, math.inf),
        # Which bodies sleep
        "tree_asleep": (-1 - mujoco.mjMINAWAKE, model.ntree - 1),
        "tree_awake": (0, 1),
        "body_awake": (int(mujoco.mjtSleepState.mjS_STATIC), int(mujoco.mjtSleepState.mjS_AWAKE)),
        "body_awake_ind": (0, model.nbody - 1),
        "dof_awake_ind": (0, model.nv - 1),
        "ntree_awake": (0, model.ntree),
        "nbody_awake": (0, model.nbody),
        "nv_awake": (0, model.nv),
    }


def copy_state(
    source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor], limits: Mapping[str, Limits] | None = None
) -> None:
    """Copy tensors in place to those of the same names, because recorded graphs contain the targets' addresses.

    If names or shapes differ, or a number is outside of its limits, nothing is copied.
    """
    for name in {**source, **target}:
        there, here = (str(tuple(held[name].shape)) if name in held else "missing" for held in (source, target))
        if there != here:
            raise UserError(
                f"the saved state does not match the envs: {name} is {there} in the saved state and {here} in the "
                "envs; use the same model, task and number of envs"
            )
    for name, tensor in target.items():
        if limits and name in limits:
            check_limits(f"the saved state does not match the envs: {name}", source[name], tensor.dtype, limits[name])
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_limits(name: str, value: torch.Tensor, dtype: torch.dtype, limits: Limits) -> None:
    """Raise if a saved tensor has another type, or a number outside of its limits."""
    if value.dtype != dtype:
        raise UserError(f"{name} is of type {value.dtype}, but must be of type {dtype}; it is damaged")
    value = value.cpu()
    low, high = (torch.as_tensor(limit).expand(value.shape) for limit in limits)
    outside = (value < low) | (value > high) | (value.isnan() & (low > -math.inf))
    if outside.any():
        wrong, least, most = (numbers[outside][0].item() for numbers in (value, low, high))
        raise UserError(
            f"{name} contains {wrong}, but must be between {least:g} and {most:g}; it is damaged, or of another task"
        )
