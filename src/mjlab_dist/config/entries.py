"""Read and replace entries of configs: fields of dataclasses, and entries of mappings such as terms and parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


def entries(value: Any) -> Mapping[str, Any]:
    """Return the entries of a part of a config, with their names as keys. A plain value has no entries.

    Args:
        value: A dataclass, a mapping or a plain value.
    """
    if isinstance(value, Mapping):
        return value
    fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return {field.name: getattr(value, field.name) for field in fields}


def entry(config: Any, path: Sequence[str]) -> Any:
    """Return an entry of a config; None if there is none.

    Args:
        config: The config, or a part of one.
        path: Names that lead to the entry.
    """
    for name in path:
        config = entries(config).get(name)
    return config


def replaced(config: Any, path: Sequence[str], value: Any) -> Any:
    """Return a config with a new value for an entry. In a mapping, the entry itself may be new.

    Args:
        config: The config, or a part of one.
        path: Names that lead to the entry, at least one.
        value: The new value.
    """
    name, *rest = path
    new = replaced(entries(config)[name], rest, value) if rest else value
    return {**config, name: new} if isinstance(config, Mapping) else dataclasses.replace(config, **{name: new})


def without(config: Any, path: Sequence[str]) -> Any:
    """Return a config without an entry of a mapping, such as a term.

    Args:
        config: The config, or a part of one.
        path: Names that lead to the entry.
    """
    *parent, name = path
    return replaced(config, parent, {key: value for key, value in entry(config, parent).items() if key != name})
