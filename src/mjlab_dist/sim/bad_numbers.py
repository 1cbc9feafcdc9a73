"""Refuse numbers in a model that no simulation can use, before they turn up as NaN in all envs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco

_SAME = ("body", "geom", "site", "light", "mesh", "actuator", "sensor", "tendon", "key", "pair")

# Kinds of elements by prefix of their fields of mujoco.MjModel
_KINDS = {name: name for name in _SAME} | {"jnt": "joint", "dof": "joint", "cam": "camera", "eq": "equality"}


def refuse_bad_numbers(flag: str, model: mujoco.MjModel) -> None:
    """Raise if a value of an MJCF is NaN, infinite, or too large for float32.

    Ranges may be infinite. Numbers for users, and those that MuJoCo computes for the reference pose, are not checked.
    """
    for name, values in _fields(model):
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))
        if name.endswith("range"):
            bad &= ~np.isinf(values)
        if bad.any():
            row = int(np.argwhere(bad)[0, 0])
            value = " ".join(f"{number:g}" for number in np.ravel(values[row]))
            raise UserError(f"{flag}: {_element(model, name, row)} is {value}; use a finite number")


def _fields(model: mujoco.MjModel) -> list[tuple[str, np.ndarray]]:
    options = [(f"opt_{name}", np.atleast_1d(getattr(model.opt, name))) for name in dir(model.opt) if name[0] != "_"]
    names = [name for name in dir(model) if name.partition("_")[0] in _KINDS and not name.endswith(("0", "user"))]
    fields = [*options, *((name, getattr(model, name)) for name in names)]
    return [(name, values) for name, values in fields if isinstance(values, np.ndarray) and values.dtype.kind == "f"]


def _element(model: mujoco.MjModel, field: str, row: int) -> str:
    """Return the kind and name of an element, and its attribute."""
    prefix, _, attribute = field.partition("_")
    if prefix == "opt":
        return f"option: {attribute}"
    kind = _KINDS[prefix]
    index = int(model.dof_jntid[row]) if prefix == "dof" else row
    return f"{kind} {getattr(model, kind)(index).name or index}: {attribute}"
