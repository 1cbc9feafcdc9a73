"""Reduce a config to the fields that flags change, because tyro takes 0.1 s to prepare all fields of a task."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from mjlab_dist.config.type_words import is_union

ConfigT = TypeVar("ConfigT")

# Field names from the root of a config to a value, with underscores instead of hyphens
Path = Sequence[str]


def narrowed(config: ConfigT, argv: Iterable[str], metadata: object) -> tuple[Any, Any, Callable[[Any], ConfigT]]:
    """Build a smaller dataclass, with only those fields and entries of a config that flags name.

    Return it, its instance with the values of the config, and a function that returns a copy of the config with the
    values of another instance.
    """
    flags = (arg.partition("=")[0] for arg in argv if arg.startswith("--"))
    return _part(config, type(config), [_plain(flag.removeprefix("--")).split(".") for flag in flags], metadata)


def _part(value: Any, hint: Any, paths: Sequence[Path], metadata: object) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Apply :func:`narrowed` to one value with its type hint. An empty path selects the whole value."""
    if all(paths) and isinstance(value, Mapping) and not is_union(hint):
        return hint, {name: value[name] for name in value if _below(name, paths)}, lambda new: {**value, **new}
    if not all(paths) or not dataclasses.is_dataclass(value) or isinstance(value, type):
        return hint, value, lambda new: new
    # Fields that flags name
    hints = typing.get_type_hints(type(value), include_extras=True)
    parts = {
        field.name: _part(getattr(value, field.name), hints[field.name], below, metadata)
        for field in dataclasses.fields(value)
        if (below := _below(field.name, paths))
    }
    # Dataclass of these fields
    fields = [(name, Annotated[part_type, metadata]) for name, (part_type, _, _) in parts.items()]
    narrow = dataclasses.make_dataclass(type(value).__name__, fields, namespace={"__doc__": ""})

    def put_back(new: Any) -> Any:
        return dataclasses.replace(value, **{name: back(getattr(new, name)) for name, (_, _, back) in parts.items()})

    return narrow, narrow(**{name: part for name, (_, part, _) in parts.items()}), put_back


def _below(name: str, paths: Sequence[Path]) -> list[Path]:
    """Return the remainders of the paths that start with this name or with its ``no_`` form."""
    return [path[1:] for path in paths if path[0] in (_plain(name), f"no_{_plain(name)}")]


def _plain(name: str) -> str:
    return name.replace("-", "_")
