"""Loading of the MJCF of a robot, by MuJoCo and by MuJoCo Warp, with errors in one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mjlab_dist.errors import UserError
from mjlab_dist.sim.bad_numbers import refuse_bad_numbers

if TYPE_CHECKING:
    import mujoco
    import mujoco_warp as mjw

# Minimum timestep. With a smaller one, a control step of 20 ms would take more than 200 physics steps.
MIN_TIMESTEP_S = 1e-4

# Maximum timestep. Robots with contacts usually need a timestep that is several times smaller.
MAX_TIMESTEP_S = 0.05


def load(flag: str, mjcf: Path) -> tuple[mujoco.MjSpec, mujoco.MjModel]:
    """Load an MJCF and compile it."""
    spec = read(flag, mjcf)
    try:
        model = compile_spec(spec)
        bytes(model.names).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{flag}: has names that are not in UTF-8; save it as UTF-8") from error
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error
    refuse_bad_numbers(flag, model)
    if not MIN_TIMESTEP_S <= model.opt.timestep <= MAX_TIMESTEP_S:
        what = "unstable" if model.opt.timestep > MAX_TIMESTEP_S else "too slow"
        raise UserError(
            f"{flag}: its timestep of {model.opt.timestep:g} s makes the simulation {what}; set "
            f'<option timestep="0.005"/> or another value from {MIN_TIMESTEP_S:g} to {MAX_TIMESTEP_S:g}'
        )
    return spec, model


def read(flag: str, file: Path) -> mujoco.MjSpec:
    """Read an MJCF or a URDF, without its meshes."""
    import mujoco

    try:
        spec = mujoco.MjSpec.from_file(str(file))
    except ValueError as error:
        raise UserError(f"{flag}: {' '.join(str(error).split())}") from error
    spec.nkey = len(spec.keys)  # a larger nkey in the MJCF would add empty keyframes
    _drop_infinite_limits(spec)
    return spec


def _drop_infinite_limits(spec: mujoco.MjSpec) -> None:
    """Remove limits with an infinite end, so that everything is chosen as without limits."""
    import mujoco

    parts = (spec.joints, ("", "actfrc")), (spec.tendons, ("", "actfrc")), (spec.actuators, ("ctrl", "force"))
    for elements, kinds in parts:
        for element, kind in ((element, kind) for element in elements for kind in kinds):
            if np.isinf(getattr(element, f"{kind}range")).any():
                setattr(element, f"{kind}range", [0.0, 0.0])
                setattr(element, f"{kind}limited", mujoco.mjtLimited.mjLIMITED_FALSE)


def compile_spec(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """Compile an MJCF without warnings about deprecated attributes."""
    with warnings.catch_warnings(action="ignore"):
        return spec.compile()


def put_on_device(flag: str, model: mujoco.MjModel) -> mjw.Model:
    """Put a model on the CPU in MuJoCo Warp, which does not support all models of MuJoCo."""
    import mujoco_warp as mjw
    import warp as wp

    from mjlab_dist.sim.start import start_warp  # imports torch and Warp

    start_warp("cpu")
    try:
        with wp.ScopedDevice("cpu"):
            return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise UserError(f"{flag}: MuJoCo Warp: {' '.join(str(error).split())}") from error
