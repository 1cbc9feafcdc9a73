"""Values of a config that flags can set: their names, types, current values and help texts."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mjlab_dist.config.serialization import as_tuples
from mjlab_dist.config.signatures import PARAMETERS, REQUIRED, Parameter, parameters_of
from mjlab_dist.config.type_words import is_union


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value of a config that a flag sets."""

    # Type of the value
    hint: Any
    # Current value
    value: Any
    # Meaning
    text: str = ""
    # Converts the words of a flag, if the value has no type that tyro knows
    read: Callable[[list[str]], Any] | None = None


def fields_of(config: Any) -> dict[str, Field]:
    """Return all values of a config that flags can set, with their dotted names as keys."""
    return dict(_walk("", config, type(config), ""))


def _walk(name: str, value: Any, hint: Any, text: str) -> Iterator[tuple[str, Field]]:
    """Yield the names and fields of a value: one, or those of its parts. Mappings of a union type are one value."""
    if dataclasses.is_dataclass(value):
        hints, docs = typing.get_type_hints(type(value)), _docs(type(value))
        for part in dataclasses.fields(value):
            inner = f"{name}.{part.name}".lstrip(".")
            if part.name in PARAMETERS:
                yield from _parameters(inner, value, part.name)
            else:
                yield from _walk(inner, getattr(value, part.name), hints[part.name], docs.get(part.name, ""))
    elif isinstance(value, Mapping) and not is_union(hint):
        entry = typing.get_args(hint)[1]
        for key, part in value.items():
            if "." in key:  # no dotted name can refer to it
                continue
            has_parts = dataclasses.is_dataclass(part) or isinstance(part, Mapping)
            if has_parts:
                yield f"{name}.{key}", Field(hint=None, value=None, text="None removes this entry.")
            yield from _walk(f"{name}.{key}", part, entry if has_parts else entry | None, "")
    elif not (value is None and dataclasses.is_dataclass(hint)):
        yield name, Field(hint=hint, value=value, text=text)


def _parameters(name: str, config: Any, field: str) -> Iterator[tuple[str, Field]]:
    """Yield the parameters of a function: first those that the config sets, then the others."""
    known, given = parameters_of(config, field), getattr(config, field)
    unknown = Parameter(default=REQUIRED, annotation="", text="")
    for parameter in dict.fromkeys([*given, *known]):
        about = known.get(parameter, unknown)
        value = given.get(parameter, None if about.default is REQUIRED else about.default)
        yield f"{name}.{parameter}", _parameter(about, value)


def _parameter(about: Parameter, value: Any) -> Field:
    """Return the field of a parameter. Its type is that of its value, because no module of terms is imported here."""
    first = value[0] if isinstance(value, tuple) and value else value
    is_alike = not isinstance(value, tuple) or all(type(part) is type(first) for part in value)
    if isinstance(first, bool | int | float | str) and is_alike:
        is_float = (
            type(first) is int and "float" in about.annotation and not re.search("int|str|bool", about.annotation)
        )
        kind = float if is_float else type(first)
        hint = tuple[kind, ...] if isinstance(value, tuple) else kind
        return Field(hint=hint | None if about.can_be_none else hint, value=value, text=about.text)
    read = functools.partial(_read, about.annotation, isinstance(value, tuple))
    return Field(hint=Any, value=value, text=about.text, read=read)


def _read(annotation: str, is_tuple: bool, words: list[str]) -> Any:
    """Read the words of a flag as YAML, or as texts if the parameter is annotated as texts."""
    import yaml  # most command lines do not need it

    is_text = "str" in annotation and not any(kind in annotation for kind in ("int", "float", "bool"))
    if not words:
        raise ValueError("a value is missing")
    try:
        read = [word if is_text and word != "None" else _scalar(yaml.safe_load(word)) for word in words]
    except yaml.YAMLError as error:
        raise ValueError("not YAML; write a value, or lists such as [[0, 1], [2, 3]]") from error
    if len(read) == 1 and not (is_tuple or annotation.startswith("tuple")):
        return as_tuples(read[0])
    return as_tuples(read[0] if len(read) == 1 and isinstance(read[0], list) else read)


def _scalar(value: Any) -> Any:
    """Convert None, and numbers such as 1e-3, because YAML reads them as strings."""
    if value == "None":
        return None
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _docs(config_type: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields by name, including the fields of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        docs |= _docs_of_module(base.__module__).get(base.__qualname__, {})
    return docs


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """Read the docstrings of all fields from a module's source. Return them by class and field."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):  # built in, or installed without source
        return {}
    docs: dict[str, dict[str, str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, after in zip(cls.body, cls.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=field_name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs.setdefault(cls.name, {})[field_name] = " ".join(text.split())
    return docs
