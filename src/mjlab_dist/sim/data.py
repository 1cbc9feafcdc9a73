"""MuJoCo Warp's data: start state, buffers, fields, its device memory, and kernels that clear rows of some envs.

A saved state, which may come from a damaged or hostile file, is checked before it is copied.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mujoco
import mujoco_warp as mjw
import torch
import warp as wp

from mjlab_dist.errors import UserError

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917


wp.set_module_options({"enable_backward": False, "max_unroll": 4})

Limits = tuple[float | torch.Tensor, float | torch.Tensor]
"""Minimum and maximum of a tensor of the state, both allowed; infinite for no limit."""


@wp.kernel
def clear_rows(
    mask: wp.array[wp.bool], addresses: wp.array[wp.uint64], strides: wp.array[wp.int64], sizes: wp.array[int]
):
    """Set the rows of some envs to 0 in several tensors; one thread per env and tensor.

    Args:
        mask: Envs to clear, (num_envs,).
    """
    env, i = wp.tid()
    if mask[env]:
        start = addresses[i] + wp.uint64(wp.int64(env) * strides[i])
        row = wp.array(ptr=start, shape=(sizes[i],), dtype=wp.uint8)
        for byte in range(sizes[i]):
            row[byte] = wp.uint8(0)


@wp.kernel
def choose_keys(mask: wp.array[wp.bool], key: int, keys: wp.array[int]):
    """Write the keyframe that each env is reset to, or -1 if it is not reset.

    Args:
        mask: Envs to reset, (num_envs,).
        keys: Output, (num_envs,).
    """
    env = wp.tid()
    keys[env] = wp.where(mask[env], key, -1)


@wp.kernel
def collect_overflow(
    newest: wp.array[int],
    bits: int,
    num_rows: wp.array[int],
    num_contacts: wp.array[int],
    num_pairs: wp.array[int],
    overflow: wp.array[int],
    demand: wp.array[int],
):
    """Accumulate the overflow bits of a step, and the maximum numbers of rows and contacts.

    Args:
        newest: Overflow bits of this step, (num_envs,).
        num_rows: Number of constraint rows, (num_envs,), including those that did not fit into the buffers.
        overflow: Accumulated bits, (num_envs,), updated in place.
        demand: Maxima over all steps, (num_envs + 1,), updated in place. The first num_envs values are numbers of
            constraint rows; the last value is the number of contacts or pairs in the whole batch.
    """
    env = wp.tid()
    overflow[env] = overflow[env] | (newest[env] & bits)
    demand[env] = wp.max(demand[env], num_rows[env])
    if env == 0:
        batch = demand.shape[0] - 1
        demand[batch] = wp.max(demand[batch], wp.max(num_contacts[0], num_pairs[0]))


def clearing(mask: wp.array, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return a program, without arguments, that sets the rows of some envs to 0. One kernel clears all tensors.

    Args:
        mask: Envs to clear, (num_envs,) of bool, on Warp's current device.
        tensors: (num_envs, ...) each, of any type, with contiguous rows. The caller must keep them alive.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return lambda: None
    assert all(len(tensor) == len(mask) and tensor[0].is_contiguous() for tensor in tensors)
    tables = [
        wp.array([tensor.data_ptr() for tensor in tensors], dtype=wp.uint64),
        wp.array([tensor.stride(0) * tensor.element_size() for tensor in tensors], dtype=wp.int64),
        wp.array([tensor[0].nbytes for tensor in tensors], dtype=int),
    ]
    size = (len(mask), len(tensors))

    def clear() -> None:
        wp.launch(clear_rows, size, [mask, *tables])

    return clear


def find_key(model: mujoco.MjModel, name: str | None) -> int | None:
    """Return the index of the keyframe that episodes start from; None for the reference positions of the joints."""
    keys = [model.key(i).name for i in range(model.nkey)]
    if name is not None and name not in keys:
        known = ", ".join(filter(None, keys)) or "none"
        raise UserError(f"--env.sim.keyframe {name}: does not exist; the model has {known}")
    return None if name is None else keys.index(name)


def put_data(model: mujoco.MjModel, key: int | None, num_envs: int, njmax: int, nconmax: int) -> mjw.Data:
    """Put the start state of every env on the current device.

    The buffers have room for at least the contacts and constraints of the start state.
    """
    start = mujoco.MjData(model)
    if key is not None:
        mujoco.mj_resetDataKeyframe(model, start, key)
    mujoco.mj_forward(model, start)
    # At least 1: with 0, MuJoCo Warp skips the solver, but its integrators read a result of the solver
    njmax = max(njmax, start.nefc, 1)
    return mjw.put_data(model, start, nworld=num_envs, njmax=njmax, nconmax=max(nconmax, start.ncon))


def per_env_names() -> list[str]:
    """Return the fields of ``mujoco_warp.Data`` with a row per env."""
    return [field.name for field in dataclasses.fields(mjw.Data) if getattr(field.type, "shape", ("",))[0] == "nworld"]


def array_bytes(*holders: Any) -> dict[int, int]:
    """Return the size in bytes of every Warp array in dataclasses, tuples and lists.

    Keys are addresses, so that memory that several arrays share counts once.
    """
    found: dict[int, int] = {}
    for holder in holders:
        if isinstance(holder, wp.array):
            inner = {holder.ptr: holder.capacity} if holder.ptr else {}
        elif dataclasses.is_dataclass(holder):
            inner = array_bytes(*(getattr(holder, field.name) for field in dataclasses.fields(holder)))
        elif isinstance(holder, tuple | list):
            inner = array_bytes(*holder)
        else:
            continue
        for pointer, size in inner.items():
            found[pointer] = max(size, found.get(pointer, 0))
    return found


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
