"""Conversion of configs to plain data and back, for files and the command line. Errors name the line and the type."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
import reprlib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mjlab_dist.config.agent import ALGORITHMS, AgentConfig
from mjlab_dist.config.limits import is_union
from mjlab_dist.config.run import LOGGERS, TrainConfig
from mjlab_dist.config.task import CaptureMode, ParamValue
from mjlab_dist.config.terms import name_of
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import dacite
    import yaml

# Singular and plural of the name of a type's values
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("True or False", "True or False, several times"),
    type(None): ("None", "None, several times"),
}

# Matches Python's spelling of YAML's null, which users write in configs
NONE = re.compile(r"^None$")

# Maximum number of values in a config file, with aliases expanded. Without this limit, a few lines with aliases could
# expand to more values than fit into memory.
MAX_VALUES = 1_000_000

# Maximum size of a whole number. The libraries that receive it cannot represent larger ones.
MAX_BITS = 64


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


def load_yaml(text: str) -> Any:
    """Return the values of a YAML text, without executing anything in it. ``None`` stands for null.

    Args:
        text: The text.

    Raises:
        yaml.YAMLError: If the text is not YAML, contains too many values, or repeats a key.
    """
    import yaml  # not needed to print help

    class Loader(yaml.SafeLoader):
        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            _refuse_repeated_keys(node)
            try:
                value = super().construct_object(node, deep)
                if isinstance(value, str):
                    value.encode()  # a lone surrogate is not text
            except (ValueError, OverflowError) as error:  # such as the date 2026-99-99
                raise yaml.MarkedYAMLError(problem="it has a wrong value", problem_mark=node.start_mark) from error
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise yaml.MarkedYAMLError(problem="it has a number that is too large", problem_mark=node.start_mark)
            return value

    Loader.add_implicit_resolver("tag:yaml.org,2002:null", NONE, ["N"])
    loader = Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _num_values(node, {}) > MAX_VALUES:
            raise yaml.MarkedYAMLError(problem="it has too many values", problem_mark=node.start_mark)
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=loader.get_mark()) from error
    finally:
        loader.dispose()


def dump_yaml(plain: Any) -> str:
    """Return plain data as YAML that :func:`load_yaml` reads back.

    Args:
        plain: The data.
    """
    import yaml  # not needed to print help

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.add_implicit_resolver("tag:yaml.org,2002:null", NONE, ["N"])  # so that the text None gets quotes
    return yaml.dump(plain, Dumper=Dumper, sort_keys=False)


def _refuse_repeated_keys(node: yaml.Node) -> None:
    import yaml  # not needed to print help

    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        name = key.tag, str(key.value)
        if name in lines and key.tag != "tag:yaml.org,2002:merge":
            problem = f"the key {key.value} is already in line {lines[name]}; remove one of the two"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
        lines[name] = key.start_mark.line + 1


def _num_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Return the number of values in a node, with aliases expanded; infinite if the node contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node.value, list) else []
        nodes = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_num_values(one, known) for one in nodes)
    return known[id(node)]


def line_of_problem(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """Return the line number of a YAML error, counted from 1, and a description of the error.

    Args:
        error: The error of the parser.
        text: The text.
    """
    import yaml  # not needed to print help

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return error.problem_mark.line + 1, error.problem or "cannot be parsed"
    position = getattr(error, "position", len(text))
    return text.count("\n", 0, position) + 1, getattr(error, "reason", "cannot be parsed")


def line_of_field(text: str, path: str) -> int | None:
    """Return the line number of a field in a config file, counted from 1; None if the file does not contain it.

    Args:
        text: The file, which is YAML.
        path: Dotted name of the field, or the last part of it.
    """
    import yaml  # not needed to print help

    fields = _fields(yaml.compose(text, yaml.SafeLoader), "")
    return next((line for name, line in fields if f".{name}".endswith(f".{path}")), None)


def _fields(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the dotted name and the line number of each field."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            yield name, key.start_mark.line + 1
            yield from _fields(value, f"{name}.")


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
        kind = {"algorithm": config.algorithm} if isinstance(config, AgentConfig) else {}
        return kind | {f.name: to_plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
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
        config = dacite.Config(type_hooks=hooks, strict=True)
        agent = {"agent": _agent_of(plain["agent"], config)} if isinstance(plain.get("agent"), Mapping) else {}
        return dacite.from_dict(TrainConfig, plain | agent, config=config)
    except dacite.WrongTypeError as error:
        given = reprlib.repr(error.value)
        path = _whole_path(plain, error.field_path or "", error.value)
        raise FieldError(f"{path} {given}: takes {in_words(error.field_type)}", path, error.value) from error
    except dacite.UnexpectedDataError as error:
        unknown = sorted(map(str, error.keys))  # YAML keys can also be numbers, for example
        raise FieldError(f"{', '.join(unknown)}: unknown field", unknown[0]) from error
    except dacite.DaciteFieldError as error:
        raise FieldError(str(error), error.field_path or "") from error


def _agent_of(plain: Mapping[str, Any], config: dacite.Config) -> AgentConfig:
    """Convert the plain data of a learner, whose entry ``algorithm`` says of which; without it, of PPO."""
    import dacite

    fields = {name: value for name, value in plain.items() if name != "algorithm"}
    algorithm = plain.get("algorithm", "ppo")
    if algorithm not in ALGORITHMS:
        raise FieldError(f"agent.algorithm {algorithm}: use {' or '.join(ALGORITHMS)}", "agent.algorithm", algorithm)
    try:
        return dacite.from_dict(ALGORITHMS[algorithm], fields, config=config)
    except dacite.DaciteFieldError as error:
        error.update_path("agent")
        raise


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
