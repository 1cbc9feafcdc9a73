"""Read config files as YAML, and find the line numbers of errors in them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml

# Matches Python's spelling of YAML's null, which users write in configs
NONE = re.compile(r"^None$")

# Maximum number of values in a config file, with aliases expanded. Without this limit, a few lines with aliases could
# expand to more values than fit into memory.
MAX_VALUES = 1_000_000

# Maximum size of a whole number. The libraries that receive it cannot represent larger ones.
MAX_BITS = 64


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
