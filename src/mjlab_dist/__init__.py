"""mjlab_dist: train one robot policy on all GPUs or CPU cores of one machine or several.

From Python: ``mjlab_dist.train("cartpole-balance", gpu_ids="all")``. Importing this package does not import torch.
"""

from __future__ import annotations

# Not imported from typing, which would double the import time. Type checkers treat any variable of this name as true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from mjlab_dist.api import check_task, load_policy, make, play, train
    from mjlab_dist.config.registry import task_config
    from mjlab_dist.errors import CheckError, RankError, UserError
    from mjlab_dist.learn.loggers import Logger

__all__ = [
    "CheckError",
    "Logger",
    "RankError",
    "UserError",
    "check_task",
    "load_policy",
    "make",
    "play",
    "task_config",
    "train",
]

_MODULES = {
    "api": ("check_task", "load_policy", "make", "play", "train"),
    "errors": ("CheckError", "RankError", "UserError"),
    "config.registry": ("task_config",),
    "learn.loggers": ("Logger",),
}


def __getattr__(name: str) -> object:
    # Import modules at first use, so that this package is imported quickly: before that, a command cannot handle Ctrl-C
    import importlib

    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"mjlab_dist.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
