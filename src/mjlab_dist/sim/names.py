"""Names of elements of a scene, by entity: selection by regular expressions, and new names."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco


def exactly(name: str) -> str:
    """Return the regular expression that fully matches one name. A name without special characters stays as it is."""
    return re.sub(r"[][\\.^$*+?{}|()]", r"\\\g<0>", name)


def new_name(wish: str, taken: Collection[str]) -> str:
    """Return a name that no other element has: the given one, with a number if it is taken."""
    numbered = (f"{wish}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wish], numbered) if name not in taken)


def find_names(what: str, patterns: Iterable[str], names: Sequence[str | None]) -> list[int]:
    """Return the indices of the names that fully match at least one pattern, in ascending order."""
    found: set[int] = set()
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        try:
            matches = {i for i, name in enumerate(names) if name is not None and re.fullmatch(pattern, name)}
        except re.error as error:
            raise UserError(f"{what} {pattern}: is not a regular expression: {error}") from error
        if not matches:
            known = ", ".join(dict.fromkeys(filter(None, names)))
            shown = f": {known}" if known else ", because there are none"
            raise UserError(f"{what} {pattern}: matches none of the model's names{shown}")
        found |= matches
    if not found:
        raise UserError(f"{what}: the list is empty; omit the parameter to select all, or remove the term")
    return sorted(found)


def local_name(name: str, entity: str | None, entities: Collection[str]) -> str | None:
    """Return the name of an element within an entity; None if the element belongs to another entity."""
    if entity is None:
        return name
    owner = next((one for one in entities if name.startswith(f"{one}/")), "")
    return name.removeprefix(f"{owner}/") if owner == entity else None


def check_entity(what: str, entity: str | None, entities: Collection[str]) -> None:
    """Raise if an entity does not exist."""
    if entity and entity not in entities:
        raise UserError(
            f"{what} {entity}: is not an entity of the scene, which has {', '.join(entities) or 'no entities'}; "
            "for the elements of sim.model, write an empty name"
        )


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
