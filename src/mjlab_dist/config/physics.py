"""Configs of the solver, of sensors that are added to a scene, and of the buffers for contacts and constraint rows.

The docstrings of the fields are also the help texts of the flags.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mjlab_dist.config.limits import PositiveFloat, PositiveInt

if TYPE_CHECKING:
    from mjlab_dist.config.run import TrainConfig

ElementKind = Literal["body", "geom", "subtree"]
"""Kind of element that contact sensors match. body: a body without its children. subtree: a body with all its
descendants."""

# Size of the buffer for constraint rows, divided by the maximum number of rows measured; both are per env
BUFFER_MARGIN = 1.25

# The same ratio for the list of contacts that all envs share. The size of the list is based on the mean over envs,
# which depends more on the policy than the maximum over envs does. The ratio is therefore larger.
SHARED_MARGIN = 1.5

# Overflows that a larger njmax fixes, named as in mujoco_warp.OverflowType
ROW_OVERFLOWS = frozenset({"NEFC", "NJMAX_NNZ"})

# Overflows that a larger nconmax fixes
CONTACT_OVERFLOWS = frozenset({"BROADPHASE", "NARROWPHASE", "CCD"})

# Minimum size of a buffer, in rows or contacts per env, for a model that can have any
MIN_BUFFER = 4

# Maximum size that a run chooses automatically, in rows or contacts per env. A run that needs more probably has
# unstable physics.
MAX_BUFFER = 10_000

# Minimum factor by which a buffer that was too small grows, before the margin is applied.
#
# The factor is needed because the measured count may be too low: it does not include the rows of dropped contacts.
MIN_GROWTH = 1.25


@dataclass(frozen=True, kw_only=True)
class OptionsConfig:
    """MuJoCo's options. An option that is None keeps the MJCF's value."""

    timestep_s: PositiveFloat | None = None
    """Length of a physics step, in simulated seconds."""
    integrator: Literal["euler", "implicit", "implicitfast", "rk4"] | None = None
    """Numerical integrator."""
    cone: Literal["pyramidal", "elliptic"] | None = None
    """Shape of the friction cone. Pyramids are faster, but friction then depends on the direction in the world: a
    quadruped that walked straight ahead turned by up to 1 degree per second, depending on its heading (docs/lab.md)."""
    solver: Literal["newton", "cg"] | None = None
    """Constraint solver; MuJoCo Warp has no PGS."""
    iterations: PositiveInt | None = None
    """Maximum number of solver iterations per physics step."""
    ls_iterations: PositiveInt | None = None
    """Maximum number of line search steps per solver iteration. MuJoCo's C code needs more of them than MuJoCo Warp:
    with 20, a gripper cannot hold a cube (docs/lab.md)."""
    impratio: PositiveFloat | None = None
    """Ratio of frictional to normal constraint impedance. Values above 1 reduce slip."""
    tolerance: PositiveFloat | None = None
    """Improvement of the cost below which the solver stops. MuJoCo Warp uses at least 1e-6."""


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


def with_sizes(config: TrainConfig, sizes: Mapping[str, int]) -> TrainConfig:
    """Return a config with different buffer sizes."""
    sim = dataclasses.replace(config.env.sim, **sizes)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, sim=sim))


def larger_size(size: int, needed: int, margin: float) -> int:
    """Return a larger size for a buffer that was too small."""
    return size_for(margin * max(needed, MIN_GROWTH * size), is_possible=True)


def size_for(number: float, is_possible: bool) -> int:
    """Return a buffer size per env.

    Sizes are rounded up so that few different sizes occur, because each new size requires kernels to be compiled.
    """
    step = MIN_BUFFER if number <= 32 else 8 if number <= 64 else 16
    return max(math.ceil(number / step) * step, MIN_BUFFER if is_possible else 0)
