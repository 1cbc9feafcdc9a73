"""Configs that tests change: by a dotted path, or by a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legged import EVERYTHING

from mjlab_dist.cli.flags import by_flag
from mjlab_dist.cli.run_flags import config_of, flag_values, read_flags
from mjlab_dist.cli.train import ON_SHORT_PAGE, TrainFlags
from mjlab_dist.config import TrainConfig
from mjlab_dist.config.dotted_names import with_values

LEGGED = TrainConfig(task="legged", env=EVERYTHING)
"""A task with every kind of term."""


def changed(config: Any, path: str, value: Any) -> Any:
    """Return a copy of a config in which one field or dict entry, named by a dotted path, has a new value."""
    name, _, rest = path.partition(".")
    new = changed(config[name] if isinstance(config, dict) else getattr(config, name), rest, value) if rest else value
    return {**config, name: new} if isinstance(config, dict) else dataclasses.replace(config, **{name: new})


def value_at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


def typed(*words: str) -> TrainConfig:
    """Return the config that ``train`` reads from a command line."""
    return config_of(read_flags(words, "train", TrainFlags(), ON_SHORT_PAGE))


def with_flags(config: TrainConfig, words: Sequence[str]) -> TrainConfig:
    """Return a config that flags have changed."""
    return with_values(config, flag_values(config, by_flag(words), "train cartpole-balance", {}))
