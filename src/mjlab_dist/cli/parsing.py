"""Read argv into a config with tyro, and report every mistake in one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

from mjlab_dist.cli.help import HELP_FLAGS, Flag, config_page, flags_of, take_help
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean

ConfigT = TypeVar("ConfigT")


def parse(
    config_type: type[ConfigT], default: ConfigT, argv: Sequence[str], prog: str, own: Iterable[Flag] = ()
) -> ConfigT:
    """Read flags over a default config. ``--help`` and ``--help-all`` print a page of all flags and exit.

    Args:
        config_type: The config's class.
        default: Values of flags that are not given.
        argv: Flags.
        prog: The command, for help.
        own: Flags that the command reads itself, so that mistyped ones are suggested too.

    Raises:
        UserError: If a flag is unknown, or its value has the wrong form.
    """
    asked, flags = take_help(argv)
    if asked is not None:
        print(config_page(default, prog))
        sys.exit(0)

    import tyro  # noqa: PLC0415 (slow; short help needs none of it)

    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            return tyro.cli(config_type, default=default, args=flags, prog=prog)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UserError(_one_line(stderr.getvalue(), prog, [*flags_of(default), *own])) from None


def refuse_unknown(argv: Sequence[str], flags: Iterable[Flag], prog: str) -> None:
    """Raise if argv contains an unknown flag.

    Raises:
        UserError: If there is such a flag; the message suggests the nearest.
    """
    known = _spellings(flags)
    for arg in argv:
        flag = arg.partition("=")[0].replace("_", "-")
        switch = re.sub(r"(?<=[-.])no-(?=[^.]*$)", "", flag)  # --no-x is the switch --x, turned off
        if flag.startswith("--") and not {flag, switch} & set(known):
            raise UserError(_unknown(flag, known, prog))


def split_task(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the task's name from the front of argv.

    Returns:
        The task, or None if argv starts with a flag; and the rest.
    """
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    return None, list(argv)


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Take one flag with its value out of argv, as ``--flag value`` or ``--flag=value``.

    Raises:
        UserError: If the flag has no value.
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


def take_switch(argv: Sequence[str], flag: str) -> tuple[bool, list[str]]:
    """Take a flag without a value out of argv; return whether it was there, and the rest."""
    return flag in argv, [arg for arg in argv if arg != flag]


def take_group(argv: Sequence[str], prefix: str) -> tuple[list[str], list[str]]:
    """Take all flags that start with a prefix out of argv, with their values.

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
    """Return whether argv has a flag, as ``--the-flag value``, as ``--the-flag=value``, or with underscores."""
    return any(arg.partition("=")[0].replace("_", "-") == flag for arg in argv)


def _spellings(flags: Iterable[Flag]) -> list[str]:
    return [spelling for flag in (*flags, *HELP_FLAGS) for spelling in flag.spellings if flag.path != "task"]


def _unknown(flag: str, known: Iterable[str], prog: str) -> str:
    see = f"see {prog} --help"
    if not flag.startswith("-"):
        return f"{flag}: unexpected argument; {see}"
    near = did_you_mean(flag, known, "")
    return f"{flag}: unknown flag; {f'{near} ({see})' if near else see}"


def _one_line(box: str, prog: str, flags: Iterable[Flag]) -> str:
    """Return tyro's error message as one line; tyro draws a box around it, and colors it on a terminal."""
    # First paragraph, without the box and colors
    lines = [line.strip("│ \t") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    lines = [line for line in lines if not line.startswith(("╭", "╰"))]
    paragraph = " ".join(
        lines[: next((i for i, line in enumerate(lines) if not line or line.startswith("─")), len(lines))]
    )
    # Unknown flag
    unknown = re.match(r"Unrecognized options?: (\S+?)(?:,|$| )", paragraph)
    if unknown:
        return _unknown(unknown[1], _spellings(flags), prog)
    see = f"see {prog} --help"
    # Value of a wrong type
    bad = re.match(r"Error parsing (\S+): (.*)", paragraph)
    if bad:
        flag, reason = bad.groups()
        given = " ".join(re.findall(r"'([^']*)'", reason.rpartition(" from ")[2]))
        takes = next(
            (line.removeprefix(flag).strip() for line in lines if line.startswith(f"{flag} ")), "another value"
        )
        return f"{flag} {given}: takes {takes}; {see}"
    # Value that is not one of the choices
    choice = re.match(r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*?),?\)", paragraph)
    if choice:
        given, flag, choices = choice.groups()
        return f"{flag} {given}: takes {choices.replace(chr(39), '')}; {see}"
    # Missing value
    missing = re.match(r"Missing value for argument '(\S+)'", paragraph)
    if missing:
        return f"{missing[1]}: needs a value; {see}"
    return f"{paragraph.rstrip('.')}; {see}"
