"""Physics on one device: model, data, torch views, and two engines, MuJoCo Warp and MuJoCo's C code."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjlab_dist.sim.data import Limits, check_limits, copy_state
    from mjlab_dist.sim.quiet import start_warp
    from mjlab_dist.sim.scene import build_model, load_model
    from mjlab_dist.sim.simulation import Simulation

__all__ = ["Limits", "Simulation", "build_model", "check_limits", "copy_state", "load_model", "start_warp"]

_MODULES = {
    "data": ("Limits", "check_limits", "copy_state"),
    "scene": ("build_model", "load_model"),
    "simulation": ("Simulation",),
    "quiet": ("start_warp",),
}


def __getattr__(name: str) -> object:
    # Import modules at first use: the launcher builds a model to choose an engine, and does not need torch and Warp
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"mjlab_dist.sim.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
