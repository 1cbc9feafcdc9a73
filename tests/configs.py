"""Copies of configs in which one field, given by its dotted path, has a new value."""

from __future__ import annotations

import dataclasses
from typing import Any

from legged import EVERYTHING

from mjlab_dist.config import TrainConfig

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
