"""Ranks: who one is, on which device, the process group, and what ranks say to each other.

Importing this package imports no torch; :mod:`~mjlab_dist.distributed.group` does.
"""

from mjlab_dist.distributed.plan import RankDevice, RankPlan
from mjlab_dist.distributed.rank import Rank, outside_launcher, rank_from_environment

__all__ = ["Rank", "RankDevice", "RankPlan", "outside_launcher", "rank_from_environment"]
