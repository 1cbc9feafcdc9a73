"""Flags of terms that tyro cannot read: parameters that a config does not name, values without a type, and None."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mjlab_dist.config import EnvConfig, TrainConfig
from mjlab_dist.config.serialization import as_tuples
from mjlab_dist.config.signatures import REQUIRED, Parameter, parameters
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed


def take_term_flags(config: TrainConfig, argv: Sequence[str]) -> tuple[TrainConfig, list[str]]:
    """Apply the flags of terms that tyro cannot read, and take them out of argv.

    - ``--env.rewards.effort None`` removes a term, a randomization or an observation group.
    - ``--env.events.root.params.pitch-rad -0.1 0.1``: a parameter that the config does not name gets its default, so
      that tyro knows the flag and its type.
    - Values of parameters that are None, or that contain other tuples or mappings, are read as YAML.

    Args:
        config: The config that the flags change.
        argv: Flags.

    Returns:
        The changed config, and the other flags.

    Raises:
        UserError: If a value cannot be read.
    """
    rest: list[str] = []
    env = config.env
    for flag, values in _flags(argv):
        place = _locate(env, flag)
        if place is None:
            if values == ["None"]:
                _refuse_unknown_entry(env, flag)
            rest += [flag, *values]
        elif place.parameter is None:
            if values == ["None"]:
                env = _replaced(env, place.path, None)
            else:
                rest += [flag, *values]
        else:
            env, is_done = _set_parameter(env, place, flag, values)
            rest += [] if is_done else [flag, *values]
    return dataclasses.replace(config, env=env), rest


@dataclasses.dataclass(frozen=True)
class _Place:
    """A term, or a parameter of one."""

    path: tuple[str, ...]
    """Names of the fields and entries that lead from the env's config to the term."""
    term: Any
    """Config of the term; or the terms of an observation group."""
    parameter: str | None = None
    """Name of the parameter."""


def _flags(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Split argv into flags with their values; ``--flag=value`` becomes two parts. What precedes them has no flag."""
    groups: list[tuple[str, list[str]]] = []
    for arg in argv:
        if arg.startswith("--"):
            flag, is_equal, value = arg.partition("=")
            groups.append((flag, [value] if is_equal else []))
        elif groups:
            groups[-1][1].append(arg)
        else:
            groups.append((arg, []))
    return groups


def _locate(env: EnvConfig, flag: str) -> _Place | None:
    """Return what a flag names if it is a term or a parameter of one."""
    head, *names = flag.removeprefix("--").replace("_", "-").split(".")
    if head != "env" or not flag.startswith("--"):
        return None
    value: Any = env
    path: list[str] = []
    while names:
        if dataclasses.is_dataclass(value) and names[0] == "params" and len(names) == 2:
            return _Place(tuple(path), value, names[1].replace("-", "_"))
        entries = _entries(value)
        name = next((entry for entry in entries if entry.replace("_", "-") == names[0]), None)
        if name is None:
            return None
        is_entry = isinstance(value, Mapping)
        value = entries[name]
        path.append(name)
        names.pop(0)
        if not names and is_entry:
            return _Place(tuple(path), value)
    return None


def _refuse_unknown_entry(env: EnvConfig, flag: str) -> None:
    """Raise if a flag names a term that does not exist among terms of its kind."""
    kind, _, name = flag.rpartition(".")
    parts = kind.removeprefix("--env").strip(".").replace("-", "_").split(".")
    value: Any = env
    for part in parts:
        value = _entries(value).get(part)
    if isinstance(value, Mapping) and parts[-1] != "params":
        near = did_you_mean(name, value, f"the task has {listed(list(value)) or 'none'}")
        raise UserError(f"{flag} None: there is no such entry; {near}")


def _entries(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return (
        {f.name: getattr(value, f.name) for f in dataclasses.fields(value)} if dataclasses.is_dataclass(value) else {}
    )


def _set_parameter(env: EnvConfig, place: _Place, flag: str, values: Sequence[str]) -> tuple[EnvConfig, bool]:
    """Set a parameter that tyro cannot read; return the config, and whether the flag is done."""
    name = place.parameter
    known: Mapping[str, Parameter] = parameters(place.term.func) if hasattr(place.term, "func") else {}
    params = dict(getattr(place.term, "params", {}))
    if name is None or (name not in params and name not in known):
        return env, False
    parameter = known.get(name)
    current = params.get(name, parameter.default if parameter else None)
    gives_none = list(values) == ["None"] and parameter is not None and parameter.can_be_none
    if gives_none or current is None or current is REQUIRED or not _is_plain(current):
        if not values:
            raise UserError(f"{flag}: needs a value")
        params[name] = _read(flag, values, parameter.annotation if parameter else "", isinstance(current, tuple))
        return _replaced(env, (*place.path, "params"), params), True
    params[name] = current
    return _replaced(env, (*place.path, "params"), params), False


def _is_plain(value: Any) -> bool:
    """Return whether tyro can read values of the same form: a scalar, or a tuple of scalars of one type."""
    scalars = (bool, int, float, str)
    if isinstance(value, tuple):
        return bool(value) and all(type(part) is type(value[0]) and isinstance(part, scalars) for part in value)
    return isinstance(value, scalars)


def _read(flag: str, values: Sequence[str], annotation: str, is_tuple: bool) -> Any:
    """Read the values of a flag by the annotation of the parameter, as far as it says something."""
    import yaml  # noqa: PLC0415 (most command lines do not need it)

    is_text = "str" in annotation and not any(kind in annotation for kind in ("int", "float", "bool"))
    try:
        read = [value if is_text and value != "None" else _scalar(yaml.safe_load(value)) for value in values]
    except yaml.YAMLError as error:
        given = " ".join(values)
        raise UserError(f"{flag} {given}: is not YAML; write a value, or lists such as [[0, 1], [2, 3]]") from error
    if len(read) == 1 and not (is_tuple or annotation.startswith("tuple")):
        return as_tuples(read[0])
    return as_tuples(read[0] if len(read) == 1 and isinstance(read[0], list) else read)


def _scalar(value: Any) -> Any:
    """Convert what YAML reads as a string: None, and numbers such as 1e-3."""
    if value == "None":
        return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _replaced(config: Any, path: Sequence[str], value: Any) -> Any:
    """Return a config in which an entry has another value, or, if the value is None, in which it is missing."""
    name, *rest = path
    if isinstance(config, Mapping):
        if not rest and value is None:
            return {key: part for key, part in config.items() if key != name}
        return {**config, name: _replaced(config[name], rest, value) if rest else value}
    return dataclasses.replace(config, **{name: _replaced(getattr(config, name), rest, value) if rest else value})
