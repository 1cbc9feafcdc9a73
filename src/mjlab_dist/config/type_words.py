"""Describe the types of config fields in words, for messages. Imports the standard library only."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

# Singular and plural of the name of a type's values
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("True or False", "True or False, several times"),
    type(None): ("None", "None, several times"),
}


def in_words(hint: Any) -> str:
    """Describe the values of a type in words.

    Args:
        hint: Type annotation of a field.

    Example:
        >>> in_words(int | Literal["auto"])
        'a whole number, or auto'
    """
    forms = list(dict.fromkeys(_forms(hint)))
    return f"{', '.join(forms[:-1])}, or {forms[-1]}" if len(forms) > 1 else forms[0]


def is_union(hint: Any) -> bool:
    """Return whether a type annotation is a union, such as ``int | None``."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _forms(hint: Any) -> Iterator[str]:
    """Yield descriptions of a type's values: one for each member of a union, and one for each choice of a Literal."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if is_union(hint):
        for arg in args:
            yield from _forms(arg)
    elif origin is Literal:
        yield from map(str, args)
    elif origin is tuple and args[-1] is Ellipsis and typing.get_origin(args[0]) is not None:
        yield f"a list of {in_words(args[0])}"
    elif origin is tuple and args[-1] is Ellipsis:
        yield _WORDS[args[0]][1] if args[0] in _WORDS else "a list"
    elif origin is tuple:
        yield f"{len(args)} {_WORDS[args[0]][1]}" if args[0] in _WORDS else f"a list of length {len(args)}"
    elif origin is dict and args[1] in _WORDS:
        yield f"names, each with {_WORDS[args[1]][0]}"
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield f"the fields of {hint.__name__}"
    else:
        yield _WORDS[hint][0] if hint in _WORDS else "entries by name"
