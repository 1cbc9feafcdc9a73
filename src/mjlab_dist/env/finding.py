"""Selection of joints, bodies, sites and geoms of a scene by name."""

from __future__ import annotations

import mujoco

from mjlab_dist.config import EnvConfig
from mjlab_dist.env.frames import FrameKind, Frames, make_frames
from mjlab_dist.env.joints import JointSelection, select_joints
from mjlab_dist.names import find_names
from mjlab_dist.sim import Simulation
from mjlab_dist.sim.entities import element_names

_KINDS = {
    "body": ("bodies", mujoco.mjtObj.mjOBJ_BODY),
    "site": ("sites", mujoco.mjtObj.mjOBJ_SITE),
    "geom": ("geoms", mujoco.mjtObj.mjOBJ_GEOM),
}
"""Plural and type of each kind of frame."""


class Finder:
    """The methods of an env that select elements by regular expressions, which match whole names.

    Every method takes an ``entity``. It is the name of an entity, whose elements are then named without the prefix; an
    empty string for the MJCF of ``sim.model``; or None for the whole scene, with prefixes: ``.*`` then selects the
    elements of all entities.
    """

    sim: Simulation
    device: str
    cfg: EnvConfig
    _frames: dict[tuple[FrameKind, tuple[int, ...]], Frames]

    def find_joints(self, patterns: tuple[str, ...], entity: str | None = None) -> JointSelection:
        """Select hinge and slide joints.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no joint or is not a regular expression, or there is no such entity.
        """
        model, entities = self.sim.model, self.cfg.sim.entities
        names = element_names(model, mujoco.mjtObj.mjOBJ_JOINT, entity, entities)
        return select_joints(model, patterns, self.device, names)

    def find_bodies(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select bodies, and return their poses and velocities at their origins.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no body or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("body", patterns, entity)

    def find_sites(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select sites, and return their poses and velocities.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no site or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("site", patterns, entity)

    def find_geoms(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select geoms, and return their poses and velocities at their centers.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no geom or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("geom", patterns, entity)

    def find_frames(self, kind: FrameKind, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select bodies, sites or geoms, and return their poses and velocities.

        Args:
            kind: Kind of the elements.
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches nothing or is not a regular expression, or there is no such entity.
        """
        plural, object_type = _KINDS[kind]
        names = element_names(self.sim.model, object_type, entity, self.cfg.sim.entities)
        ids = tuple(find_names(plural, patterns, names))
        if (kind, ids) not in self._frames:
            self._frames[kind, ids] = make_frames(self.sim, kind, ids)
        return self._frames[kind, ids]
