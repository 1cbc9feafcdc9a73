"""Ranks: their plans, the process group, and communication between ranks.

Importing this package does not import torch. Some of its modules, such as :mod:`~mjlab_dist.distributed.group`, do.
"""

from mjlab_dist.distributed.rank import Rank, RankDevice, RankPlan, outside_launcher, rank_from_environment

__all__ = ["Rank", "RankDevice", "RankPlan", "outside_launcher", "rank_from_environment"]
