"""Find the lines of errors in a config file, for messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml


def line_of_problem(error: yaml.YAMLError, text: str) -> tuple[int, str]:
    """Return the line number of a YAML error, counted from 1, and a description of the error.

    Args:
        error: The error of the parser.
        text: The text.
    """
    import yaml  # noqa: PLC0415 (not needed to print help)

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return error.problem_mark.line + 1, error.problem or "cannot be parsed"
    position = getattr(error, "position", len(text))
    return text.count("\n", 0, position) + 1, getattr(error, "reason", "cannot be parsed")


def line_of_field(text: str, path: str, value: Any) -> int | None:
    """Return the line number of a field in a config file, counted from 1; None if the file does not contain it.

    Args:
        text: The file, which is YAML.
        path: Dotted name of the field. The names of entries, such as terms, may be left out.
        value: The field's value, which selects one of several fields with the same name.
    """
    import yaml  # noqa: PLC0415 (not needed to print help)

    found: list[tuple[bool, int]] = []
    *parents, name = path.split(".")
    for names, key, node in _fields(yaml.compose(text, yaml.SafeLoader), ()):
        rest = iter(names)
        if key.value == name and all(parent in rest for parent in parents):
            found.append((node.value != str(value), key.start_mark.line + 1))
    return min(found)[1] if found else None


def _fields(
    node: yaml.Node | None, names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], yaml.ScalarNode, yaml.Node]]:
    """Yield the names of the parents, the key and the value of every field."""
    import yaml  # noqa: PLC0415

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield names, key, value
            yield from _fields(value, (*names, str(key.value)))
