"""Limits of the numbers in configs, written in the type of a field, such as ``num_envs: PositiveInt``."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from mjlab_dist.errors import UserError


@dataclasses.dataclass(frozen=True)
class Interval:
    """Limits of a number, or of each number of a tuple. They exclude NaN and infinity."""

    least: float
    most: float = math.inf
    # Whether least itself is excluded
    is_open: bool = False

    def allows(self, number: float) -> bool:
        """Return whether a number is in the interval."""
        is_above = self.least < number if self.is_open else self.least <= number
        return is_above and number <= self.most and math.isfinite(number)

    def __str__(self) -> str:
        """Return the interval in words, such as ``at least 1``."""
        least = f"{'above' if self.is_open else 'at least'} {self.least}"
        return least if self.most == math.inf else f"{least} and at most {self.most}"


@dataclasses.dataclass(frozen=True)
class Ascending:
    """Limit of a tuple of two numbers: the second is not less than the first."""


PositiveInt = Annotated[int, Interval(1)]
NonNegativeInt = Annotated[int, Interval(0)]
PositiveFloat = Annotated[float, Interval(0, is_open=True)]
NonNegativeFloat = Annotated[float, Interval(0)]
Fraction = Annotated[float, Interval(0, 1)]

Range = Annotated[tuple[float, float], Ascending()]
NonNegativeRange = Annotated[tuple[float, float], Interval(0), Ascending()]
NonNegativeIntRange = Annotated[tuple[int, int], Interval(0), Ascending()]

Port = Annotated[int, Interval(1, 65535)]

# Width or height of a picture. Decoders of H.264 support sizes up to the largest one.
MIN_PIXELS = 16
Pixels = Annotated[int, Interval(MIN_PIXELS, 4096)]

# torch allows seeds below 2**64, but rank r adds r to the seed of a run
SEED_LIMITS = Interval(0, 2**63 - 1)
Seed = Annotated[int, SEED_LIMITS]


def validate_seed(seed: int) -> None:
    """Raise if a seed is negative, or too large for the random generators."""
    if not SEED_LIMITS.allows(seed):
        raise UserError(f"--seed {seed}: must be {SEED_LIMITS}")


def validate_limits(config: Any, prefix: str = "") -> None:
    """Raise if a number in a config is outside the limits of its field.

    Args:
        config: A dataclass.
        prefix: Dotted name of the config, with a dot at its end.
    """
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        _validate(prefix + field.name, getattr(config, field.name), hints[field.name])


@functools.cache
def _hints(config_type: type) -> dict[str, Any]:
    return typing.get_type_hints(config_type, include_extras=True)


def _validate(path: str, value: Any, hint: Any, or_none: str = "") -> None:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(value):
        validate_limits(value, f"{path}.")
    elif is_union(hint):
        for arg in args:
            _validate(path, value, arg, ", or None" if type(None) in args else "")
    elif origin is tuple and isinstance(value, tuple):
        for part in value:
            _validate(path, part, args[0])
    elif origin is dict and isinstance(value, Mapping):
        for key, part in value.items():
            _validate(f"{path}.{key}", part, args[1])
    # A member of a union, such as the number in float | tuple[float, ...], may be of another kind than the value
    elif origin is Annotated and isinstance(value, tuple) == (typing.get_origin(args[0]) is tuple):
        _validate_numbers(path, value if isinstance(value, tuple) else (value,), hint.__metadata__, or_none)


def _validate_numbers(path: str, values: Sequence[Any], limits: Sequence[object], or_none: str) -> None:
    numbers = [each for each in values if isinstance(each, int | float)]
    start = f"--{path.replace('_', '-')} {' '.join(map(str, numbers))}"
    for limit in limits:
        if isinstance(limit, Interval) and not all(map(limit.allows, numbers)):
            finite = "" if limit.most < math.inf or all(map(math.isfinite, numbers)) else " and finite"
            raise UserError(f"{start}: must be {limit}{finite}{or_none}")
        if isinstance(limit, Ascending) and not all(low <= high for low, high in itertools.pairwise(numbers)):
            raise UserError(f"{start}: is in the wrong order; swap the two")


def is_union(hint: Any) -> bool:
    """Return whether a type annotation is a union, such as ``int | None``."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
