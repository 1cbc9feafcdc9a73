"""MuJoCo Warp on one device: model, data, torch views, kernel compilation and graph capture."""

from mjlab_dist.sim.simulation import Simulation, load_model
from mjlab_dist.sim.start import start_warp

__all__ = ["Simulation", "load_model", "start_warp"]
