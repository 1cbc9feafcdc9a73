"""Physics on one device with MuJoCo Warp: model, data, torch views, kernel compilation and graph capture."""

from mjlab_dist.sim.saved import Limits, check_limits, copy_state
from mjlab_dist.sim.scene import build_model, load_model
from mjlab_dist.sim.simulation import Simulation
from mjlab_dist.sim.start import start_warp

__all__ = ["Limits", "Simulation", "build_model", "check_limits", "copy_state", "load_model", "start_warp"]
