"""Term flags that tyro cannot read: parameters that a config does not name, values without a type, and None."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mjlab_dist.cli.help import Flag
from mjlab_dist.cli.parsing import by_flag, parse
from mjlab_dist.config import EnvConfig, TrainConfig
from mjlab_dist.config.entries import entries, entry, replaced, without
from mjlab_dist.config.serialization import as_tuples
from mjlab_dist.config.signatures import PARAMETERS, REQUIRED, parameters_of
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed


def take_term_flags(config: TrainConfig, argv: Sequence[str]) -> tuple[TrainConfig, list[str]]:
    """Apply the term flags that tyro cannot read, and take them out of argv.

    - A flag with the value None, such as ``--env.rewards.effort None``, removes a term, a randomization or an
      observation group.
    - If a flag such as ``--env.events.root.params.pitch-rad -0.1 0.1`` sets a parameter that the config does not name,
      the parameter's default is added to the config. tyro then accepts the flag and converts the values.
    - The new value of a parameter is read as YAML if it is None, or if the current value is missing, None, a mapping,
      or a tuple whose parts are not scalars of one type.
    """
    rest: list[str] = []
    flags = by_flag(argv)
    env = _with_functions(config.env, flags)  # first, because the parameters of a term depend on its function
    for flag, values in flags:
        found = _find(env, flag)
        if found is None and flag.startswith("--env.") and flag.rpartition(".")[2].replace("-", "_") in PARAMETERS:
            raise UserError(f"{flag}: names no parameter; give each parameter its own flag: {flag}.<name> <value>")
        if found is not None and found.path[-1] in PARAMETERS:
            env, is_done = _set_parameter(env, found, flag, values)
            rest += [] if is_done else [flag, *values]
        elif found is not None and values == ["None"]:
            if found.name not in found.mapping:
                near = did_you_mean(found.name, found.mapping, f"the task has {listed(list(found.mapping)) or 'none'}")
                raise UserError(f"{flag} None: there is no such entry; {near}")
            env = without(env, (*found.path, found.name))
        else:
            rest += [flag, *values]
    return dataclasses.replace(config, env=env), rest


def parse_config(config: TrainConfig, argv: Sequence[str], prog: str, own: Sequence[Flag] = ()) -> TrainConfig:
    """Return a config changed by flags, including those of terms."""
    config, rest = take_term_flags(config, argv)
    return parse(config, rest, prog, own)


def _with_functions(env: EnvConfig, flags: Sequence[tuple[str, list[str]]]) -> EnvConfig:
    """Apply the flags that replace functions of terms. tyro reads these flags again later."""
    for flag, values in flags:
        term, _, field = flag.rpartition(".")
        found = _find(env, term)
        if field == "func" and len(values) == 1 and found is not None and found.name in found.mapping:
            env = replaced(env, (*found.path, found.name, field), values[0])
    return env


@dataclasses.dataclass(frozen=True)
class _Entry:
    """An entry of a mapping in the env's config: a term, a parameter of a term, or another named value."""

    # Names that lead from the env's config to the mapping
    path: tuple[str, ...]
    # The mapping; the entry may be missing
    mapping: Mapping[str, Any]
    # Name of the entry
    name: str


def _find(env: EnvConfig, flag: str) -> _Entry | None:
    """Return the mapping's entry that a flag names; None if the flag names a field of a dataclass, or nothing."""
    head, *typed = flag.removeprefix("--").replace("-", "_").split(".")
    if head != "env" or not flag.startswith("--") or not typed:
        return None
    path: list[str] = []
    value: Any = env
    for name in typed[:-1]:
        path.append(_spelled(name, value))
        value = entries(value).get(path[-1])
    return _Entry(tuple(path), value, _spelled(typed[-1], value)) if isinstance(value, Mapping) else None


def _spelled(name: str, value: Any) -> str:
    """Return the name of an entry as the config spells it: a flag may have dashes in place of underscores."""
    return next((known for known in entries(value) if known.replace("-", "_") == name), name)


def _set_parameter(env: EnvConfig, found: _Entry, flag: str, values: Sequence[str]) -> tuple[EnvConfig, bool]:
    """Set a parameter of a term if tyro cannot read it; otherwise, only ensure that the config names the parameter.

    Return the env's config, and whether this function has read the values. If the term has no such parameter, return
    the config unchanged.
    """
    name, params = found.name, dict(found.mapping)
    known = parameters_of(entry(env, found.path[:-1]), found.path[-1])
    if name not in params and name not in known:
        return env, False
    parameter = known.get(name)
    current = params.get(name, parameter.default if parameter else None)
    gives_none = list(values) == ["None"] and parameter is not None and parameter.can_be_none
    is_read_here = gives_none or current is None or current is REQUIRED or not _is_plain(current)
    if is_read_here and not values:
        raise UserError(f"{flag}: needs a value")
    annotation = parameter.annotation if parameter else ""
    params[name] = _read(flag, values, annotation, isinstance(current, tuple)) if is_read_here else current
    return replaced(env, found.path, params), is_read_here


def _is_plain(value: Any) -> bool:
    """Return whether tyro can read values of this form: a scalar, or a tuple of scalars of one type."""
    scalars = (bool, int, float, str)
    if isinstance(value, tuple):
        return bool(value) and all(type(part) is type(value[0]) and isinstance(part, scalars) for part in value)
    return isinstance(value, scalars)


def _read(flag: str, values: Sequence[str], annotation: str, is_tuple: bool) -> Any:
    """Read the values of a flag according to the parameter's annotation, if it has one."""
    import yaml  # most command lines do not need it

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
    """Convert None, and numbers such as 1e-3, because YAML reads them as strings."""
    if value == "None":
        return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
