"""Read and set values of a config by their dotted names, as flags, ``train(...)`` in Python and ``--vary`` do."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from mjlab_dist.config.run import TrainConfig
from mjlab_dist.config.serialization import from_plain, paths, to_plain
from mjlab_dist.config.signatures import PARAMETERS, parameters_of
from mjlab_dist.errors import UserError, did_you_mean


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


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """Return a copy of a config in which some fields have new values. Their types are checked as those of a file are.

    Args:
        config: The config to start from.
        values: New values. The keys are names of fields; the names of nested fields have dots. If there are new values
            for an object, such as ``agent``, and for its fields, such as ``agent.learning_rate``, the object is set
            first. None removes an entry of a mapping, such as a term. If a field is given and its alternative is not,
            such as envs per rank and envs in total, the alternative is dropped.

    Raises:
        UserError: If a field does not exist, if its value has the wrong type, or if two fields exclude each other.
    """
    changed = config
    for name in sorted(values, key=lambda name: name.count(".")):
        changed = _with_value(changed, name, values[name])
    return _drop_replaced(from_plain(to_plain(changed)), values)


def value_of(config: TrainConfig, name: str) -> Any:
    """Return the value of a field, or the default of a parameter that the config does not set.

    Args:
        config: The config.
        name: Dotted name.

    Raises:
        KeyError: If there is no such field.
    """
    *parent, last = name.split(".")
    known = entries(entry(config, parent))
    if last in known or not parent or parent[-1] not in PARAMETERS:
        return known[last]
    return parameters_of(entry(config, parent[:-1]), parent[-1])[last].default


def _with_value(config: TrainConfig, name: str, value: Any) -> TrainConfig:
    path, is_known = name.split("."), name != "task"
    try:
        value_of(config, name)
    except KeyError:
        is_known = False
    if not is_known:
        known = [known for known, _ in paths(to_plain(config))]
        raise UserError(f"{name}: unknown field; {did_you_mean(name, known, 'see train --help')}")
    is_entry = path[-2:-1] and path[-2] not in PARAMETERS and isinstance(entry(config, path[:-1]), Mapping)
    return without(config, path) if value is None and is_entry else replaced(config, path, value)


def _drop_replaced(config: TrainConfig, given: Collection[str]) -> TrainConfig:
    """Drop the value that the task or a file sets for an alternative of a given field: per rank or in total, ..."""
    if {"num_envs", "total_num_envs"} & {*given} and "gpu_num_envs" not in given:
        config = dataclasses.replace(config, gpu_num_envs=None)
    for name, other, reason in (
        ("num_envs", "total_num_envs", "one is per rank and the other is over all ranks"),
        ("max_iterations", "total_timesteps", "each sets the length of training"),
    ):
        if name not in given or getattr(config, other) is None:
            continue
        if other in given:
            one, two = (f"--{each.replace('_', '-')} {getattr(config, each)}" for each in (name, other))
            raise UserError(f"{one} and {two}: exclude each other, because {reason}; drop one")
        config = dataclasses.replace(config, **{other: None})
    return config
