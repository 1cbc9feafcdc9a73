"""Configs of sensors that are added to a scene. The docstrings of the fields are also the help texts of the flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mjlab_dist.config.limits import PositiveFloat

ElementKind = Literal["body", "geom", "subtree"]
"""Kind of element that contact sensors match. body: a body without its children. subtree: a body with all its
descendants."""


@dataclass(frozen=True, kw_only=True)
class ContactConfig:
    """Contact sensors for elements of the scene. The sensor term Contact has a row of values per element.

    If entity is the name of an entity, the elements belong to this entity, and their names are written without its
    prefix. If entity is an empty text, the elements belong to the MJCF of sim.model. If entity is None, elements can
    belong to any part of the scene, and their names are written with prefixes. other_entity works in the same way.
    """

    names: tuple[str, ...]
    """Regular expressions that match the names of the elements."""
    kind: ElementKind = "body"
    """Kind of the elements. body: a body without its children. subtree: a body with all its descendants."""
    entity: str | None = None
    """Entity of the elements. Default: the whole scene."""
    other_names: tuple[str, ...] = ()
    """Regular expressions that match the names of the other elements: only contacts with them count. The body
    named world stands for everything static. Default: all contacts count."""
    other_kind: ElementKind = "body"
    """Kind of the other elements. No other element may contain another one, because contacts of the inner one would
    count twice."""
    other_entity: str | None = None
    """Entity of the other elements. Default: the whole scene."""
    reduce: Literal["netforce", "maxforce"] = "netforce"
    """How the forces of several contacts are combined. netforce: their sum, in world coordinates. maxforce: the
    largest one, in the coordinate system of its contact, with the normal force first."""


@dataclass(frozen=True, kw_only=True)
class DistanceConfig:
    """Distances between the surfaces of geoms, and the closest points of these surfaces.

    The distance from each element (names) to each other element (other_names) is measured. Names and entities are
    written as in ContactConfig.
    """

    names: tuple[str, ...]
    """Regular expressions that match the names of the elements."""
    kind: Literal["geom", "body"] = "geom"
    """Kind of the elements. For a body, the distance of its nearest geom counts. Geoms of its children are ignored."""
    entity: str | None = None
    """Entity of the elements. Default: the whole scene."""
    other_names: tuple[str, ...]
    """Regular expressions that match the names of the other elements."""
    other_kind: Literal["geom", "body"] = "geom"
    """Kind of the other elements."""
    other_entity: str | None = None
    """Entity of the other elements. Default: the whole scene."""
    max_m: PositiveFloat
    """Maximum distance that is measured, in m. For elements that are further apart, this distance is returned."""
