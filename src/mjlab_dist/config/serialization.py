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
from mjlab_dist.config.type_words import in_words
from mjlab_dist.errors import UserError

MOVED_MODULES = {
    "mjlab_dist.env.terms": "mjlab_dist.mdp.observations",
    **{
        f"mjlab_dist.env.{name}": f"mjlab_dist.mdp.{name}"
        for name in ("commands", "curricula", "events", "height_scan", "motion", "rewards", "sensors", "terminations")
    },
}
"""Former names of modules in config files of older versions, and the names of these modules now."""

MOVED_PARAMETERS = {
    "mjlab_dist.mdp.motion:lost": {"most_m": "max_m", "most_rad": "max_rad"},
    "mjlab_dist.mdp.rewards:contacts": {"least_n": "min_n"},
    "mjlab_dist.mdp.rewards:feet_air_time": {"least_s": "min_s"},
    "mjlab_dist.mdp.terminations:illegal_contact": {"least_n": "min_n"},
    "mjlab_dist.mdp.terminations:out_of_bounds": {"most_m": "max_m"},
    "mjlab_dist.mdp.terminations:tilted": {"most_rad": "max_rad"},
    "mjlab_dist.mdp.terminations:too_low": {"least_m": "min_m"},
    "mjlab_dist_tasks.arm.terms:Grasp": {"most_m": "max_m"},
    "mjlab_dist_tasks.cartpole.terms:small_control": {"most": "max_reward"},
    "mjlab_dist_tasks.gym.terms:healthy": {"most": "max_magnitude"},
    "mjlab_dist_tasks.gym.terms:unhealthy": {"most": "max_magnitude"},
    "mjlab_dist_tasks.gym.terms:wrench_cost": {"most": "max_sum", "each": "max_component"},
    "mjlab_dist_tasks.template.terms:forward_speed": {"most_m_s": "max_m_s"},
}
"""For each function, former names of its parameters in config files of older versions, and their names now."""


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
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{name}.")


def from_plain(plain: dict[str, Any]) -> TrainConfig:
    """Convert plain data from :func:`to_plain`, also of older versions, back to a config.

    Raises:
        FieldError: If a field is missing, unknown or of the wrong type.
    """
    return typed(_upgraded(plain), texts_as_numbers=True)


def typed(plain: dict[str, Any], *, texts_as_numbers: bool = False) -> TrainConfig:
    """Convert plain data from :func:`to_plain` back to a config.

    Args:
        plain: The data, with tuples in the parameters of terms.
        texts_as_numbers: Whether a text such as 1e-3 is a number, as YAML reads this number as a text.

    Raises:
        FieldError: If a field is missing, unknown or of the wrong type.
    """
    import dacite  # noqa: PLC0415 (not needed to print help)

    # Conversions of values; the sign + is an error before a text
    number = float if texts_as_numbers else operator.pos

    def tuple_of_list(hint: Any, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):  # parameters of terms are tuples already
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
    hooks = {int: without_bool, float: real} | {hint: functools.partial(tuple_of_list, hint) for hint in tuples}
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


def _upgraded(plain: dict[str, Any]) -> dict[str, Any]:
    """Convert configs of older versions to the current format.

    In older versions, ``env.sim.capture`` was a bool, ``logger`` was a single name, ``fsdp_min_size_mb`` was not in
    ``sync``, and some modules and parameters had other names.
    """
    plain = _renamed(plain)
    if isinstance(plain.get("logger"), str):
        plain = {**plain, "logger": [plain["logger"]]}
    if "fsdp_min_size_mb" in plain:
        moved = {"fsdp_min_size_mb": plain.pop("fsdp_min_size_mb")}
        plain["sync"] = {**moved, **(plain.get("sync") or {})}
    match plain:
        case {"env": {"sim": {"capture": bool(captures)} as sim} as env}:
            capture = "physics" if captures else "off"
            return {**plain, "env": {**env, "sim": {**sim, "capture": capture}}}
    return plain


def _renamed(value: Any) -> Any:
    """Replace former names of modules and parameters in plain data with their current names.

    Modules are named in references ``package.module:name``. In the parameters of terms, lists also become tuples.
    """
    if isinstance(value, dict):
        renamed = {key: _renamed(part) for key, part in value.items()}
        match renamed:
            case {"func": str(func), "params": dict(params)}:
                names = MOVED_PARAMETERS.get(func, {})
                renamed["params"] = {names.get(name, name): as_tuples(part) for name, part in params.items()}
            case {"model": str(), "model_params": dict(params)}:
                renamed["model_params"] = as_tuples(params)
        return renamed
    if isinstance(value, list):
        return [_renamed(part) for part in value]
    if isinstance(value, str):
        module, colon, name = value.partition(":")
        return f"{MOVED_MODULES.get(module, module)}{colon}{name}" if colon else value
    return value
