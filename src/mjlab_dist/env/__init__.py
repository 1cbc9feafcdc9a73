"""The batched env that rsl_rl trains on, and the terms that tasks are made of."""

from mjlab_dist.env.env import Env, EpisodeTotals, StartState

__all__ = ["Env", "EpisodeTotals", "StartState"]
