"""argv to config by tyro, with one line for every mistake."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from mjlab_dist.cli.help import config_page, take_help
from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.errors import UserError

ConfigT = TypeVar("ConfigT")


def parse(config_type: type[ConfigT], default: ConfigT, argv: Sequence[str], prog: str) -> ConfigT:
    """Read flags over a default config. ``--help`` prints a page of all flags, ``--help-all`` tyro's, and both exit.

    Args:
        config_type: The config's class.
        default: Values of flags that are not given.
        argv: Flags.
        prog: The command, for help.

    Raises:
        UserError: If a flag is unknown or its value does not fit.
    """
    asked, flags = take_help(argv)
    if asked is not None and not asked.everything:
        print(config_page(default, prog))
        sys.exit(0)

    import tyro  # noqa: PLC0415 (slow; short help needs none of it)

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(config_type, default=default, args=["--help"] if asked else flags, prog=prog)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UserError(_one_line(said.getvalue(), prog, set(_flags(default)))) from None


def split_task(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the task's name from the front of argv.

    Returns:
        The task, or None where argv starts with a flag, and the rest.
    """
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    return None, list(argv)


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Take one flag with its value out of argv, as ``--flag value`` or ``--flag=value``.

    Raises:
        UserError: If the flag stands there without a value.
    """
    rest = list(argv)
    for i, arg in enumerate(rest):
        if arg == flag:
            if i + 1 == len(rest) or rest[i + 1].startswith("--"):
                raise UserError(f"{flag}: needs a value")
            return rest[i + 1], rest[:i] + rest[i + 2 :]
        if arg.startswith(f"{flag}="):
            return arg.removeprefix(f"{flag}="), rest[:i] + rest[i + 1 :]
    return None, rest


def take_group(argv: Sequence[str], prefix: str) -> tuple[list[str], list[str]]:
    """Take all flags that start with a prefix out of argv, each with its values.

    Returns:
        These flags, and the rest.
    """
    taken: list[str] = []
    rest: list[str] = []
    group = rest
    for arg in argv:
        if arg.startswith("--"):
            group = taken if arg.startswith(prefix) else rest
        group.append(arg)
    return taken, rest


def is_given(argv: Sequence[str], flag: str) -> bool:
    """Whether a flag stands in argv, as ``--the-flag value``, ``--the-flag=value`` or with underscores, as tyro takes it."""
    return any(arg.partition("=")[0].replace("_", "-") == flag for arg in argv)


def _flags(config: Any) -> Iterator[str]:
    """Names of all flags of a config, as tyro makes them."""
    for path, value in paths(to_plain(config)):
        if isinstance(value, dict) and value:
            continue  # its fields are the flags
        *parents, name = path.replace("_", "-").split(".")
        yield "--" + ".".join([*parents, name])
        if isinstance(value, bool):
            yield "--" + ".".join([*parents, f"no-{name}"])


def _one_line(box: str, prog: str, flags: set[str]) -> str:
    """What tyro says in a box, colored on a terminal, as one line."""
    lines = [line.strip("│ \t") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    lines = [line for line in lines if not line.startswith(("╭", "╰"))]
    paragraph = " ".join(
        lines[: next((i for i, line in enumerate(lines) if not line or line.startswith("─")), len(lines))]
    )
    mend = f"see {prog} --help"
    unknown = re.match(r"Unrecognized options?: (\S+?)(?:,|$| )", paragraph)
    if unknown:
        near = difflib.get_close_matches(unknown[1], flags, n=1, cutoff=0.5)
        return f"{unknown[1]}: unknown flag; {f'did you mean {near[0]}? ({mend})' if near else mend}"
    bad = re.match(r"Error parsing (\S+): (.*)", paragraph)
    if bad:
        flag, reason = bad.groups()
        given = " ".join(re.findall(r"'([^']*)'", reason.rpartition(" from ")[2]))
        takes = next(
            (line.removeprefix(flag).strip() for line in lines if line.startswith(f"{flag} ")), "another value"
        )
        return f"{flag} {given}: takes {takes}; {mend}"
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*?),?\)", paragraph)
    if choice:
        given, flag, choices = choice.groups()
        return f"{flag} {given}: takes {choices.replace(chr(39), '')}; {mend}"
    missing = re.match(r"Missing value for argument '(\S+)'", paragraph)
    if missing:
        return f"{missing[1]}: needs a value; {mend}"
    return f"{paragraph.rstrip('.')}; {mend}"
