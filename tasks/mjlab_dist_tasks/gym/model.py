"""The models of Gymnasium's MuJoCo v5 tasks, read from the installed package gymnasium."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.imports import require_extra

if TYPE_CHECKING:
    import mujoco


def hopper() -> mujoco.MjSpec:
    """Load the hopper: a leg with a foot, which moves in a plane."""
    return _load("hopper.xml")


def half_cheetah() -> mujoco.MjSpec:
    """Load the half-cheetah: a back with a hind leg and a front leg, which moves in a plane."""
    return _load("half_cheetah.xml")


def walker2d() -> mujoco.MjSpec:
    """Load the walker: two legs, which move in a plane. As in v5, both feet have the same friction."""
    return _load("walker2d_v5.xml")


def ant() -> mujoco.MjSpec:
    """Load the ant: a ball on four legs."""
    return _load("ant.xml")


def humanoid() -> mujoco.MjSpec:
    """Load the humanoid: a body with legs and arms. The task's options override the MJCF's solver, PGS."""
    return _load("humanoid.xml")


def inverted_pendulum() -> mujoco.MjSpec:
    """Load the inverted pendulum: a pole on a cart."""
    return _load("inverted_pendulum.xml")


def reacher() -> mujoco.MjSpec:
    """Load the reacher: an arm of two links in a plane, and a target."""
    return _load("reacher.xml")


def _load(file: str) -> mujoco.MjSpec:
    import mujoco

    spec = mujoco.MjSpec.from_file(str(_assets() / file))
    for actuator in spec.actuators:
        # Configs refer to actuators by name, but most actuators have no name.
        actuator.name = actuator.name or actuator.target
    if spec.compiler.settotalmass > 0:
        _scale_mass(spec)
    return spec


def _scale_mass(spec: mujoco.MjSpec) -> None:
    """Scale the densities instead of using settotalmass: MuJoCo 4 warns about this attribute at each compilation."""
    total_kg = spec.compiler.settotalmass
    spec.compiler.settotalmass = -1.0
    factor = total_kg / spec.compile().body_mass.sum()
    for geom in spec.geoms:
        geom.density *= factor


def _assets() -> Path:
    package = importlib.util.find_spec("gymnasium")
    if package is None:
        require_extra("gym", "the models of the gym tasks")  # not always: a rank would start 30 ms later
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "envs" / "mujoco" / "assets"
