"""MuJoCo Warp's data: start state, buffers, fields, and its device memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import mujoco_warp as mjw
import warp as wp

from mjlab_dist.errors import UserError


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
