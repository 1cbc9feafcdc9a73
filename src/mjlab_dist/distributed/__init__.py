"""Ranks: their plans, the process group, and communication between ranks.

Importing this package does not import torch, but some of its modules do, such as :mod:`~mjlab_dist.distributed.group`.
"""

from mjlab_dist.distributed.plan import RankDevice, RankPlan
from mjlab_dist.distributed.rank import Rank, outside_launcher, rank_from_environment

__all__ = ["Rank", "RankDevice", "RankPlan", "outside_launcher", "rank_from_environment"]
