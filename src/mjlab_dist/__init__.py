"""mjlab_dist: train one robot policy over every GPU or CPU core, of one machine or several.

From Python: ``mjlab_dist.train("cartpole-balance", gpu_ids="all")``. Importing this imports no torch.
"""

from mjlab_dist.api import check_task, load_policy, train
from mjlab_dist.errors import CheckError, RankError, UserError
from mjlab_dist.logger import Logger
from mjlab_dist.registry import task_config

__all__ = ["CheckError", "Logger", "RankError", "UserError", "check_task", "load_policy", "task_config", "train"]
