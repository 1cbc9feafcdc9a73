"""The vectorized env that rsl_rl trains on, and the base classes of the terms of a task."""

from mjlab_dist.env.env import Env, StartState
from mjlab_dist.env.episodes import EpisodeTotals

__all__ = ["Env", "EpisodeTotals", "StartState"]
