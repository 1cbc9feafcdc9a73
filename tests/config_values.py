"""The plain values of a config: their paths, their types, and copies of the config with different values."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

Steps = tuple[str, ...]
"""Names of fields and keys, from the config to one of its values."""


def leaves(value: Any, hint: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any, Any]]:
    """Yield the path, type and value of each plain value of a config."""
    if dataclasses.is_dataclass(value):
        hints = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), hints[field.name], (*steps, field.name))
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from leaves(part, typing.get_args(hint)[1], (*steps, name))
    else:
        yield steps, hint, value


def changed(value: Any, steps: Steps, new: Any) -> Any:
    """Return a copy of a config in which one value is replaced."""
    if not steps:
        return new
    first, *rest = steps
    if isinstance(value, Mapping):
        return {**value, first: changed(value[first], tuple(rest), new)}
    return dataclasses.replace(value, **{first: changed(getattr(value, first), tuple(rest), new)})
