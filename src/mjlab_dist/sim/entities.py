"""Names of the elements of a scene, by entity."""

from __future__ import annotations

from collections.abc import Collection

import mujoco

from mjlab_dist.sim.names import check_entity, local_name


def element_names(model: mujoco.MjModel, kind: str, entity: str | None, entities: Collection[str]) -> list[str | None]:
    """Return, for each element of a kind, its name without the entity's prefix; None for elements of other entities.

    An element without a name belongs to the entity of the nearest ancestor body that has a name. An element that has
    neither a name nor a body, such as a tendon, belongs to no entity.

    Args:
        kind: Prefix of the fields of ``mujoco.MjModel`` for this kind of element, such as ``jnt``.
    """
    check_entity("entity", entity, entities)
    num = model.nu if kind == "actuator" else getattr(model, f"n{kind}")
    bodies = range(num) if kind == "body" else getattr(model, f"{kind}_bodyid", None)
    names: list[str | None] = []
    for i in range(num):
        name = getattr(model, kind)(i).name
        if name or entity is None:
            names.append(local_name(name, entity, entities))
        elif bodies is not None:
            body = int(bodies[i])
            while body and not model.body(body).name:
                body = int(model.body_parentid[body])
            owner = local_name(model.body(body).name if body else "", entity, entities)
            names.append(None if owner is None else "")
        else:
            names.append(None)
    return names
