"""Physics on one device with MuJoCo Warp: model, data, torch views, kernel compilation and graph capture."""

from mjlab_dist.sim.scene import build_model, load_model
from mjlab_dist.sim.simulation import Simulation, copy_state
from mjlab_dist.sim.start import start_warp

__all__ = ["Simulation", "build_model", "copy_state", "load_model", "start_warp"]
