"""Config of the solver and the integrator. The docstrings of the fields are also the help texts of the flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mjlab_dist.config.limits import PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class OptionsConfig:
    """MuJoCo's options. An option that is None keeps the MJCF's value."""

    timestep_s: PositiveFloat | None = None
    """Length of a physics step, in simulated seconds."""
    integrator: Literal["euler", "implicit", "implicitfast", "rk4"] | None = None
    """Numerical integrator."""
    cone: Literal["pyramidal", "elliptic"] | None = None
    """Shape of the friction cone."""
    solver: Literal["newton", "cg"] | None = None
    """Constraint solver; MuJoCo Warp has no PGS."""
    iterations: PositiveInt | None = None
    """Maximum number of solver iterations per physics step."""
    ls_iterations: PositiveInt | None = None
    """Maximum number of line search steps per solver iteration."""
    impratio: PositiveFloat | None = None
    """Ratio of frictional to normal constraint impedance. Values above 1 reduce slip."""
    tolerance: PositiveFloat | None = None
    """Improvement of the cost below which the solver stops. MuJoCo Warp uses at least 1e-6."""
