"""Conversion of configs to plain data and back, for files and the command line."""

from __future__ import annotations

import dataclasses
import functools
import operator
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config.loggers import LOGGERS
from mjlab_dist.config.references import name_of
from mjlab_dist.config.run import TrainConfig
from mjlab_dist.config.task import CaptureMode, ParamValue
from mjlab_dist.config.type_words import in_words
from mjlab_dist.errors import UserError


class FieldError(UserError):
    """A field of a config is missing, unknown or of the wrong type.

    Attributes:
        path: Dotted name of the field; for an unknown field, without its parents.
        value: Its value; None if it is missing or unknown.
    """

    def __init__(self, message: str, path: str, value: Any = None) -> None:
        super().__init__(message)
        self.path = path
        self.value = value


def to_plain(config: Any) -> Any:
    """Convert a config to dicts, lists and scalars.

    Args:
        config: A config dataclass, or a value of one.

    Returns:
        Plain data: dataclasses and mappings as dicts, tuples as lists, paths as strings, functions as references.
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {key: to_plain(value) for key, value in config.items()}
    if isinstance(config, tuple | list):
        return [to_plain(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    if callable(config):
        return name_of(config)
    return config


def as_tuples(value: Any) -> Any:
    """Convert lists to tuples, including those inside lists and mappings.

    Args:
        value: Plain data.
    """
    if isinstance(value, list | tuple):
        return tuple(as_tuples(part) for part in value)
    if isinstance(value, Mapping):
        return {key: as_tuples(part) for key, part in value.items()}
    return value


def paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of all entries of a config.

    Args:
        plain: The config as plain data, from :func:`to_plain`.
        prefix: Prefix of every name.

    Yields:
        Name and value; a mapping comes before its own entries.
    """
    for name, value in plain.items():
        yield f"{prefix}{name}", value  # a key of a YAML file can also be a number
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{name}.")


def from_plain(plain: dict[str, Any], *, from_yaml: bool = True) -> TrainConfig:
    """Convert plain data from :func:`to_plain` back to a config.

    Args:
        plain: The data.
        from_yaml: Whether a text such as 1e-3 is a number, and False is off, because YAML reads them as these values.

    Raises:
        FieldError: If a field is missing, unknown or of the wrong type.
    """
    import dacite  # not needed to print help

    # Conversions of values; the sign + is an error before a text
    number = float if from_yaml else operator.pos

    def tuple_of_list(hint: Any, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise dacite.WrongTypeError(hint, value)
        return tuple(value)

    def without_bool(value: Any) -> Any:
        if isinstance(value, bool):  # Python's bool is an int
            raise dacite.WrongTypeError(int, value)
        return value

    def real(value: Any) -> float:
        try:
            return float(number(without_bool(value)))
        except (TypeError, ValueError):
            raise dacite.WrongTypeError(float, value) from None

    tuples = (
        tuple[int, ...],
        tuple[float, ...],
        tuple[str, ...],
        LOGGERS,
        tuple[int, int],
        *(tuple[(float,) * length] for length in (2, 3, 4)),
    )
    hooks = {int: without_bool, float: real, dict[str, ParamValue]: as_tuples}
    hooks |= {CaptureMode: lambda value: "off" if value is False and from_yaml else value}
    hooks |= {hint: functools.partial(tuple_of_list, hint) for hint in tuples}
    # Config, or an error that names the field
    try:
        return dacite.from_dict(TrainConfig, plain, config=dacite.Config(type_hooks=hooks, strict=True))
    except dacite.WrongTypeError as error:
        given = reprlib.repr(error.value)
        path = _whole_path(plain, error.field_path or "", error.value)
        raise FieldError(f"{path} {given}: takes {in_words(error.field_type)}", path, error.value) from error
    except dacite.UnexpectedDataError as error:
        unknown = sorted(map(str, error.keys))  # YAML keys can also be numbers, for example
        raise FieldError(f"{', '.join(unknown)}: unknown field", unknown[0]) from error
    except dacite.DaciteFieldError as error:
        raise FieldError(str(error), error.field_path or "") from error


def _whole_path(plain: Mapping[str, Any], path: str, value: Any) -> str:
    """Return the dotted name of a field. In the path from dacite, names of parents such as terms are missing."""
    *parents, field = path.split(".")
    for name, found in paths(plain):
        *names, last = name.split(".")
        rest = iter(names)
        is_same = repr(as_tuples(found)) == repr(as_tuples(value))  # the number 1 equals True
        if last == field and is_same and all(parent in rest for parent in parents):
            return name
    return path
