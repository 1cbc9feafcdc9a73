"""Configs as plain data, for files and the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.config.references import name_of
from mjlab_dist.config.run import TrainConfig
from mjlab_dist.errors import UserError

MOVED_MODULES = {
    "mjlab_dist.env.terms": "mjlab_dist.mdp.observations",
    **{
        f"mjlab_dist.env.{name}": f"mjlab_dist.mdp.{name}"
        for name in ("commands", "curricula", "events", "height_scan", "motion", "rewards", "sensors", "terminations")
    },
}
"""Modules that config files of older versions name, and where their contents are now."""


def to_plain(config: Any) -> Any:
    """Turn a config into dicts, lists and scalars, for a file.

    Args:
        config: A config dataclass, or anything that one holds.

    Returns:
        The same as plain data: dataclasses and mappings as dicts, tuples as lists, paths as text.
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


def paths(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all that a config holds.

    Args:
        plain: What :func:`to_plain` made of it.
        prefix: Put before every name.

    Yields:
        Name and value; what holds others comes before them.
    """
    for name, value in plain.items():
        yield prefix + name, value
        if isinstance(value, Mapping):
            yield from paths(value, f"{prefix}{name}.")


def from_plain(plain: dict[str, Any]) -> TrainConfig:
    """Turn what :func:`~mjlab_dist.config.serialization.to_plain` made back into a config.

    Raises:
        UserError: If a field is missing, unknown, or of another type.
    """
    import dacite  # noqa: PLC0415 (not needed to print help)

    def tuple_of_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise dacite.WrongTypeError(tuple, value)
        return tuple(value)

    def real(value: Any) -> float:
        # YAML reads 1e-3 as text.
        try:
            return float(value)
        except (TypeError, ValueError):
            raise dacite.WrongTypeError(float, value) from None

    tuples = (
        tuple[int, ...],
        tuple[float, ...],
        tuple[str, ...],
        tuple[int, int],
        *(tuple[(float,) * length] for length in (2, 3, 4)),
    )
    hooks = {float: real} | dict.fromkeys(tuples, tuple_of_list)
    try:
        return dacite.from_dict(TrainConfig, _upgraded(plain), config=dacite.Config(type_hooks=hooks, strict=True))
    except dacite.DaciteError as error:
        raise UserError(str(error)) from error


def _upgraded(plain: dict[str, Any]) -> dict[str, Any]:
    """Translate what older versions wrote: ``env.sim.capture`` was a flag, and modules had other names."""
    plain = _renamed(plain)
    match plain:
        case {"env": {"sim": {"capture": bool(captures)} as sim} as env}:
            capture = "physics" if captures else "off"
            return {**plain, "env": {**env, "sim": {**sim, "capture": capture}}}
    return plain


def _renamed(value: Any) -> Any:
    """Replace references ``package.module:name`` to modules that have moved, in plain data."""
    if isinstance(value, dict):
        return {key: _renamed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_renamed(part) for part in value]
    if isinstance(value, str):
        module, colon, name = value.partition(":")
        return f"{MOVED_MODULES.get(module, module)}{colon}{name}" if colon else value
    return value
