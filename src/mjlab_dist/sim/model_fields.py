"""Fields of MuJoCo Warp's model that differ between envs, and the constants derived from them."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from mujoco_warp._src import util_pkg

from mjlab_dist.errors import UserError
from mjlab_dist.imports import patched
from mjlab_dist.sim.height_field import take_over

# Fields of mujoco_warp.Option that may differ between envs: properties of the world, not of the solver
OPTIONS = ("gravity", "wind", "magnetic", "density", "viscosity")

# Fields that change the poses of static geoms
MOVING_STATIC = {"geom_pos", "geom_quat", "body_pos", "body_quat"}

_FRAME0 = ("cam_pos0", "cam_poscom0", "cam_mat0", "light_pos0", "light_poscom0", "light_dir0")

_INERTIA0 = ("dof_invweight0", "body_invweight0", "tendon_invweight0", "actuator_acc0")

_POSE0 = ("tendon_length0", "eq_data", *_FRAME0, *_INERTIA0)

# Fields that `mujoco_warp.set_const` computes, by group
_GROUPS: dict[int, tuple[str, ...]] = {
    mjw.SetConstGroup.FIXED: ("body_subtreemass", "geom_aabb", "geom_rbound"),
    mjw.SetConstGroup.KIN0: ("tendon_length0", "eq_data", *_FRAME0),
    mjw.SetConstGroup.INERT0: _INERTIA0,
}

# Fields derived from each field
_DERIVED: dict[str, tuple[str, ...]] = {
    "body_mass": ("body_subtreemass", "cam_poscom0", "light_poscom0", *_INERTIA0),
    "body_ipos": ("cam_poscom0", "light_poscom0", *_INERTIA0),
    **dict.fromkeys(("body_inertia", "body_iquat"), _INERTIA0),
    **dict.fromkeys(("dof_armature", "tendon_armature", "actuator_armature", "actuator_gear"), _INERTIA0),
    **dict.fromkeys(("body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0"), _POSE0),
    **dict.fromkeys(("cam_pos", "cam_quat", "light_pos", "light_dir"), _FRAME0),
    "geom_size": ("geom_aabb", "geom_rbound"),
    "eq_data": ("eq_data",),
}

# Fields that determine the paths of tendons and the positions of site transmissions
_ROUTES = ("site_pos", "site_quat", "geom_pos", "geom_quat", "geom_size")

# Fields derived from these paths and positions
_ROUTED = ("tendon_length0", "tendon_invweight0", "actuator_acc0")

# For each field, the attribute of the model that enables the part of the physics that needs the field. MuJoCo Warp
# disables the part if the field is initially 0.
_SWITCHES = {
    **dict.fromkeys(("wind", "density", "viscosity"), "has_fluid"),
    "tendon_stiffness": "has_tendon_stiffness",
    "tendon_damping": "has_tendon_damping",
}

# Cached, because MuJoCo Warp checks MuJoCo's version three times per model, and each check reads package metadata
_check_version = functools.cache(util_pkg.check_version)

_ON_JOINTS = (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)


def put_model(model: mujoco.MjModel, name: str, num_envs: int, fields: Iterable[str]) -> mjw.Model:
    """Put a model on the current device; the given fields have one value per env."""
    sizes = {field: num_envs for field in fields if field not in OPTIONS}
    try:
        with patched(util_pkg, "check_version", _check_version):
            put = mjw.put_model(model, batch_sizes=sizes)
    except (NotImplementedError, ValueError) as error:
        raise UserError(f"--env.sim.model {name}: MuJoCo Warp: {' '.join(str(error).split())}") from error
    take_over(model, put)
    put.opt.warn_overflow = 0  # the runner reports overflows once; otherwise, every env would print them
    # The argument batch_sizes does not apply to options.
    for field in set(fields) - sizes.keys():
        shared = getattr(put.opt, field)
        setattr(put.opt, field, wp.array(np.repeat(shared.numpy(), num_envs, axis=0), dtype=shared.dtype))
    # MuJoCo Warp skips a part of the physics whose field is 0 in the MJCF, but the field may become nonzero later.
    for field, switch in _SWITCHES.items():
        if field in fields:
            setattr(put, switch, True)
    return put


def with_derived(model: mujoco.MjModel, fields: Iterable[str]) -> list[str]:
    """Return the given fields and all fields of the model that are derived from them."""
    found: dict[str, None] = {}
    for name in fields:
        if name not in _offered(model):
            raise no_field(model, name)
        found |= dict.fromkeys([name, *derived(model, name)])
    return list(found)


def derived(model: mujoco.MjModel, name: str) -> list[str]:
    """Return the fields of the model that are derived from a field."""
    routed = bool(model.ntendon) or not np.isin(model.actuator_trntype, _ON_JOINTS).all()
    names = _DERIVED.get(name, ()) + (_ROUTED if name in _ROUTES and routed else ())
    return [name for name in names if getattr(model, name).size]


def groups(model: mujoco.MjModel, fields: Iterable[str]) -> int:
    """Return the groups of ``mujoco_warp.set_const`` that recompute the fields derived from the given ones."""
    names = {name for field in fields for name in derived(model, field)}
    return sum(group for group, computed in _GROUPS.items() if names & set(computed))


def batched_fields() -> list[str]:
    """Return the real-valued fields of ``mujoco_warp.Model`` that may have one value per env."""
    specs: list[tuple[str, Any]] = [(field.name, field.type) for field in dataclasses.fields(mjw.Model)]
    per_env = [(name, spec.dtype) for name, spec in specs if getattr(spec, "shape", ("",))[0] == "*"]
    return [name for name, dtype in per_env if getattr(dtype, "_wp_scalar_type_", dtype) in (float, wp.float32)]


def no_field(model: mujoco.MjModel, name: str) -> UserError:
    """Return the error for a field that cannot have one value per env."""
    return UserError(
        f"field {name}: cannot have one value per env; the fields that can are {', '.join(_offered(model))}"
    )


def refuse_moved_inertia(model: mujoco.MjModel, name: str, field: torch.Tensor) -> None:
    """Raise if a body's inertial frame was moved, although MuJoCo assumes that it is at the body's origin.

    MuJoCo makes this assumption for bodies whose ``body_simple`` is not 0.

    Args:
        field: Its values, (num_envs, nbody, ...).
    """
    moved = (field.cpu() != torch.from_numpy(getattr(model, name)).float()).any(dim=2).any(dim=0).numpy()
    for body in np.flatnonzero(moved & (model.body_simple != 0)):
        raise UserError(
            f"field {name}: was changed for body {model.body(body).name}, but MuJoCo assumes that the inertia of this "
            'body is at its origin, along its axes; add simple="false" to the body in the MJCF'
        )


def refuse_writes(flag: str, views: Mapping[str, torch.Tensor], per_env: Iterable[str]) -> None:
    """Raise if torch has written to fields that all envs share."""
    for name in views.keys() - set(per_env):
        view = views[name]
        if not view.is_inference() and view._version:  # torch does not count writes to inference tensors
            raise UserError(
                f'{flag}: writes to {name}, which all envs share; add .writing("{name}") to the event in the task, so '
                f"that {name} has one value per env"
            )


class Sliders:
    """Sets the inverse weights of bodies that only slide and have no children: ``set_const`` does not set them."""

    def __init__(self, model: mujoco.MjModel, put: mjw.Model, device: str) -> None:
        """Look up the bodies."""
        bodies = np.flatnonzero(model.body_simple == 2)
        dofs = np.flatnonzero(np.isin(model.dof_bodyid, bodies))
        self._bodies, self._dofs, self._body_of_dof = (
            torch.tensor(ids, dtype=torch.long, device=device) for ids in (bodies, dofs, model.dof_bodyid[dofs])
        )
        fields = (put.body_mass, put.dof_invweight0, put.body_invweight0)
        self._mass, self._of_dofs, self._of_bodies = (wp.to_torch(field) for field in fields)

    def correct(self) -> None:
        """Set the inverse weights, as MuJoCo's C code does."""
        inverse_mass = 1.0 / self._mass
        self._of_dofs.index_copy_(1, self._dofs, inverse_mass.index_select(1, self._body_of_dof))
        of_bodies = inverse_mass.index_select(1, self._bodies)
        self._of_bodies.index_copy_(1, self._bodies, torch.stack([of_bodies, torch.zeros_like(of_bodies)], dim=2))


def unanchored(put: mjw.Model) -> mjw.Model:
    """Return a shallow copy of the model in which no geom is static.

    MuJoCo Warp computes the poses of static geoms only once, when its data is created. With the copy, it computes them
    again.
    """
    copied = copy.copy(put)
    copied.body_weldid = wp.full_like(put.body_weldid, 1)
    return copied


def _offered(model: mujoco.MjModel) -> list[str]:
    computed = {name for names in _GROUPS.values() for name in names} - {"eq_data"}
    return [name for name in batched_fields() if name not in computed and getattr(model, name).size] + list(OPTIONS)
