"""The batched env that rsl_rl trains on, and the terms that tasks are made of."""

from mjlab_dist.env.env import Env, StartState
from mjlab_dist.env.episodes import EpisodeTotals

__all__ = ["Env", "EpisodeTotals", "StartState"]
