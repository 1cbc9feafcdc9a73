"""The grid of configs that ``--vary`` evaluates. Imports no torch."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mjlab_dist.config import EventConfig, RandomizationConfig, TrainConfig
from mjlab_dist.config.checks import validate
from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.config.signatures import REQUIRED
from mjlab_dist.config.values import value_of, with_values
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed

# Maximum number of combinations of values
MAX_POINTS = 1000

SYNTAX = "write NAME=START:STOP:COUNT or NAME=VALUE,VALUE,..."


@dataclass(frozen=True)
class Axis:
    """A parameter that varies."""

    # Name of the parameter, as the user has written it
    name: str
    # Values of the parameter
    values: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """A combination of values."""

    # Value of each axis, by the name of the axis; empty if nothing varies
    values: Mapping[str, float]
    # The run's config with these values
    config: TrainConfig


def parse_axis(text: str) -> Axis:
    """Parse an argument of ``--vary``."""
    name, separator, numbers = text.partition("=")
    try:
        if not (name and separator):
            raise ValueError
        if ":" in numbers:
            start, stop, count = numbers.split(":")
            values = _spaced(float(start), float(stop), int(count))
        else:
            values = tuple(map(float, numbers.split(",")))
    except ValueError:
        raise UserError(f"--vary {text}: is not a list of values; {SYNTAX}") from None
    if not values or not all(map(math.isfinite, values)):
        raise UserError(f"--vary {text}: needs finite numbers, and a count of at least 1; {SYNTAX}")
    return Axis(name, values)


def make_points(config: TrainConfig, texts: Sequence[str]) -> list[Point]:
    """Return all combinations of the values. The last axis varies fastest.

    Without arguments of ``--vary``, return a single point, which contains the run's config.
    """
    axes = [parse_axis(text) for text in texts]
    names = [axis.name for axis in axes]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--vary {repeated[0]}: is given twice; list all its values in one --vary")
    count = math.prod(len(axis.values) for axis in axes)
    if count > MAX_POINTS:
        raise UserError(f"--vary {' '.join(texts)}: makes {count} combinations; the maximum is {MAX_POINTS}")
    return [
        Point(varied, _varied(config, varied) if varied else config)
        for varied in (dict(zip(names, values, strict=True)) for values in itertools.product(*(a.values for a in axes)))
    ]


def changes_of(config: TrainConfig, name: str, value: float) -> dict[str, Any]:
    """Return the values, by dotted name, that set one entry of the env to a number.

    If the entry is a randomization, it always samples this value. If the entry is an event, each range of its params
    becomes the range from minus the value to the value. If the entry is a single range of an event, such as the
    velocity of a push, only this range changes in this way. Any other range becomes a range that contains only the
    value. A number is replaced with the value.
    """
    dotted, found = _find(config, name)
    if isinstance(found, RandomizationConfig):
        constant = {"low": value, "high": value, "mean": None, "std": None, "distribution": "uniform"}
        return {f"{dotted}.{field}": given for field, given in constant.items()}
    if isinstance(found, EventConfig):
        ranges = [param for param, given in found.params.items() if _is_range(given)]
        if not ranges:
            raise UserError(f"--vary {name}: the params of this event contain no range; vary another entry of the env")
        return {f"{dotted}.params.{param}": (-value, value) for param in ranges}
    if _is_range(found):
        return {dotted: (-value if dotted.startswith("env.events.") else value, value)}
    if isinstance(found, bool) or not isinstance(found, int | float | None):
        raise UserError(f"--vary {name}: is neither a number nor a range; vary a number, range, randomization or event")
    if isinstance(found, int):
        if not value.is_integer():
            raise UserError(f"--vary {name}: takes whole numbers; {value:g} is not whole")
        value = int(value)
    return {dotted: value}


def _find(config: TrainConfig, name: str) -> tuple[str, Any]:
    """Return the dotted name that a name refers to, and the value there. Dashes may stand for underscores."""
    env, spelled = config.env, name.replace("-", "_")
    short = {key: f"env.{kind}.{key}" for kind in ("events", "randomizations") for key in getattr(env, kind)}
    dotted = short.get(spelled, spelled)
    with contextlib.suppress(KeyError):
        found = value_of(config, dotted) if dotted.startswith("env.") else REQUIRED
        if found is not REQUIRED:
            return dotted, found
    known = [path for path, _ in paths({"env": to_plain(env)})]
    has = f"the task has {listed(sorted(short))}" if short else "the task has no randomizations and no events"
    raise UserError(f"--vary {name}: the env has nothing with this name; {did_you_mean(name, [*short, *known], has)}")


def _is_range(value: Any) -> bool:
    """Return whether a value is a range: two numbers."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(part, int | float) and not isinstance(part, bool) for part in value)
    )


def _spaced(start: float, stop: float, count: int) -> tuple[float, ...]:
    """Return equally spaced values, including both ends."""
    if count == 1:
        return (start,)
    return tuple(start + (stop - start) * i / (count - 1) for i in range(count))


def _varied(config: TrainConfig, values: Mapping[str, float]) -> TrainConfig:
    """Return a copy of a config with one combination of values. Raise if a value has a wrong type or is impossible."""
    changes = [changes_of(config, name, value) for name, value in values.items()]
    try:
        varied = with_values(config, {field: value for change in changes for field, value in change.items()})
        validate(varied)
    except UserError as error:
        raise UserError(f"--vary {' '.join(f'{name}={value:g}' for name, value in values.items())}: {error}") from None
    return varied
