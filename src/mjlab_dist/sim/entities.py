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
}

_BODIES = {
    mujoco.mjtObj.mjOBJ_JOINT: "jnt_bodyid",
    mujoco.mjtObj.mjOBJ_GEOM: "geom_bodyid",
    mujoco.mjtObj.mjOBJ_SITE: "site_bodyid",
}


def element_names(
    model: mujoco.MjModel, kind: mujoco.mjtObj, entity: str | None, entities: Collection[str]
) -> list[str | None]:
    """Return the name of each body, joint, geom or site within an entity; None for elements of other entities.

    Args:
        model: The model.
        kind: Kind of the elements.
        entity: Name of the entity; empty for the MJCF of ``sim.model``; None for the whole scene, with full names.
        entities: Names of all entities of the scene.

    Raises:
        UserError: If there is no such entity.
    """
    check_entity("entity", entity, entities)
    names = []
    for i in range(getattr(model, _COUNTS[kind])):
        name = mujoco.mj_id2name(model, kind, i) or ""
        # An element without a name belongs to the entity of the nearest body that has one.
        local = local_name(name or _nearest_body(model, kind, i), entity, entities)
        names.append(local if name or local is None else "")
    return names


def _nearest_body(model: mujoco.MjModel, kind: mujoco.mjtObj, i: int) -> str:
    body = i if kind == _BODY else int(getattr(model, _BODIES[kind])[i])
    while body and not model.body(body).name:
        body = int(model.body_parentid[body])
    return model.body(body).name if body else ""
