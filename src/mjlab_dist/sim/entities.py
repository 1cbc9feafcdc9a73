"""Names of the elements of a scene, by entity."""

from __future__ import annotations

from collections.abc import Collection

import mujoco

from mjlab_dist.names import check_entity, local_name

_BODY = mujoco.mjtObj.mjOBJ_BODY

_COUNTS = {
    _BODY: "nbody",
    mujoco.mjtObj.mjOBJ_JOINT: "njnt",
    mujoco.mjtObj.mjOBJ_GEOM: "ngeom",
    mujoco.mjtObj.mjOBJ_SITE: "nsite",
    mujoco.mjtObj.mjOBJ_CAMERA: "ncam",
    mujoco.mjtObj.mjOBJ_LIGHT: "nlight",
    mujoco.mjtObj.mjOBJ_TENDON: "ntendon",
    mujoco.mjtObj.mjOBJ_ACTUATOR: "nu",
    mujoco.mjtObj.mjOBJ_PAIR: "npair",
    mujoco.mjtObj.mjOBJ_EQUALITY: "neq",
    mujoco.mjtObj.mjOBJ_SENSOR: "nsensor",
    mujoco.mjtObj.mjOBJ_MATERIAL: "nmat",
}

_BODIES = {
    mujoco.mjtObj.mjOBJ_JOINT: "jnt_bodyid",
    mujoco.mjtObj.mjOBJ_GEOM: "geom_bodyid",
    mujoco.mjtObj.mjOBJ_SITE: "site_bodyid",
    mujoco.mjtObj.mjOBJ_CAMERA: "cam_bodyid",
    mujoco.mjtObj.mjOBJ_LIGHT: "light_bodyid",
}


def element_names(
    model: mujoco.MjModel, kind: mujoco.mjtObj, entity: str | None, entities: Collection[str]
) -> list[str | None]:
    """Return, for each element of a kind, its name without the entity's prefix; None for elements of other entities.

    An element without a name belongs to the entity of the nearest ancestor body that has a name. An element that has
    neither a name nor a body, such as a tendon, belongs to no entity.
    """
    check_entity("entity", entity, entities)
    names: list[str | None] = []
    for i in range(getattr(model, _COUNTS[kind])):
        name = mujoco.mj_id2name(model, kind, i) or ""
        if name or entity is None:
            names.append(local_name(name, entity, entities))
        elif kind == _BODY or kind in _BODIES:
            owner = local_name(_nearest_body(model, kind, i), entity, entities)
            names.append(None if owner is None else "")
        else:
            names.append(None)
    return names


def _nearest_body(model: mujoco.MjModel, kind: mujoco.mjtObj, i: int) -> str:
    body = i if kind == _BODY else int(getattr(model, _BODIES[kind])[i])
    while body and not model.body(body).name:
        body = int(model.body_parentid[body])
    return model.body(body).name if body else ""
