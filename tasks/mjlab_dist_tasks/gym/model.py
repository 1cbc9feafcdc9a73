"""The models of Gymnasium's MuJoCo v5 tasks, read from the installed package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import mujoco


def hopper() -> mujoco.MjSpec:
    """A leg with a foot that hops in a plane."""
    return _load("hopper.xml")


def half_cheetah() -> mujoco.MjSpec:
    """A back with a hind and a front leg that runs in a plane."""
    return _load("half_cheetah.xml")


def walker2d() -> mujoco.MjSpec:
    """Two legs that walk in a plane; with as much friction under either foot, as v5 has it."""
    return _load("walker2d_v5.xml")


def ant() -> mujoco.MjSpec:
    """A ball on four legs."""
    return _load("ant.xml")


def humanoid() -> mujoco.MjSpec:
    """A body with legs and arms. Its solver is PGS: the task's options name another."""
    return _load("humanoid.xml")


def inverted_pendulum() -> mujoco.MjSpec:
    """A pole that stands on a cart."""
    return _load("inverted_pendulum.xml")


def reacher() -> mujoco.MjSpec:
    """An arm of two links in the plane, and a target."""
    return _load("reacher.xml")


def _load(file: str) -> mujoco.MjSpec:
    import mujoco

    spec = mujoco.MjSpec.from_file(str(_assets() / file))
    for actuator in spec.actuators:
        # Most have no name, and a config calls actuators by name.
        actuator.name = actuator.name or actuator.target
    if spec.compiler.settotalmass > 0:
        _scale_mass(spec)
    return spec


def _scale_mass(spec: mujoco.MjSpec) -> None:
    """Put the total mass into the densities: as an attribute of the compiler MuJoCo 4 warns of it at every compilation."""
    total_kg = spec.compiler.settotalmass
    spec.compiler.settotalmass = -1.0
    factor = total_kg / spec.compile().body_mass.sum()
    for geom in spec.geoms:
        geom.density *= factor


def _assets() -> Path:
    package = importlib.util.find_spec("gymnasium")
    if package is None or package.origin is None:
        raise UserError(
            "the gym tasks load their models from the package gymnasium, which is not installed; run uv sync --extra gym, or "
            'pip install "mjlab-dist[gym]"'
        )
    return Path(package.origin).parent / "envs" / "mujoco" / "assets"
