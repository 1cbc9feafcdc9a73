"""Names of loggers in a config. Imports the standard library only."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Literal

from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed

# Name of a logger that is part of this package
LoggerName = Literal["tensorboard", "wandb", "trackio"]

# Type of the config's field logger
LOGGERS = tuple[LoggerName | str, ...]

# All names of LoggerName
BUILT_IN: tuple[LoggerName, ...] = typing.get_args(LoggerName)


def validate_loggers(names: Sequence[str], *, checkpoints: bool) -> None:
    """Raise if the name of a logger is unknown or repeated. The user's own classes are not imported.

    Args:
        names: Value of ``--logger``.
        checkpoints: Value of ``--checkpoint.wandb``, which needs the logger wandb.
    """
    for name in names:
        if name not in BUILT_IN and ":" not in name:
            use = f"use {listed(BUILT_IN, 'or')}, or package.module:Class; separate several loggers by spaces"
            fix = use if "," in name else did_you_mean(name, BUILT_IN, use)
            raise UserError(f"--logger {name}: is not a logger; {fix}")
        if names.count(name) > 1:
            raise UserError(f"--logger {' '.join(names)}: {name} is repeated; name each logger once")
    if checkpoints and "wandb" not in names:
        raise UserError("--checkpoint.wandb: needs the logger wandb, which uploads the checkpoints; add --logger wandb")
