"""Read argv into a config with tyro, and report every mistake in one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mjlab_dist import registry
from mjlab_dist.cli.help import HELP_FLAGS, Flag, config_page, flags_of, take_help
from mjlab_dist.cli.narrowing import narrowed
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean, listed

if TYPE_CHECKING:
    from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

ConfigT = TypeVar("ConfigT")

# Matches the form of a flag that takes several numbers, such as FLOAT FLOAT
_NUMBERS = re.compile(r"(INT|FLOAT)( (INT|FLOAT|\.\.\.))+")

# tyro's flag, which train has
COMPLETION = "--tyro-print-completion"

# Values of switches, in lowercase
BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def parse(default: ConfigT, argv: Sequence[str], prog: str, own: Iterable[Flag] = ()) -> ConfigT:
    """Return a default config changed by flags. ``--help`` and ``--help-all`` print a page of all flags and exit."""
    asked, flags = take_help(argv)
    if asked is not None:
        print(config_page(default, prog))
        sys.exit(0)

    if not flags:
        return default

    import tyro  # slow; short help needs none of it

    args, rules, stderr = _in_form_of_tyro(flags, default, prog), tyro.constructors.ConstructorRegistry(), io.StringIO()
    rules.primitive_rule(_whole_number_rule)
    no_help = tyro.conf.arg(help="")  # otherwise, tyro would search the source of each class for help texts
    part_type, part, put_back = narrowed(default, args, no_help)
    try:
        with rules, contextlib.redirect_stderr(stderr):
            changed = tyro.cli(part_type, default=part, args=args, prog=prog)
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        raise UserError(_one_line(stderr.getvalue(), args, prog, [*flags_of(default), *own])) from None
    return put_back(changed)


def print_completion(config: object, shell: str | None) -> None:
    """If a shell is given, print a script with which it completes the flags of a task's ``train``, and exit."""
    if shell is None:
        return
    if shell not in ("bash", "zsh"):
        raise UserError(f"{COMPLETION} {shell}: takes bash or zsh")
    import tyro

    tyro.cli(type(config), default=config, args=[COMPLETION, shell], prog="train")


def whole_number(text: str) -> int:
    """Convert a text such as 1000, 1_000 or 1e3 to a whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def positive_number(flag: str, text: str) -> int:
    """Return the value of a flag as a positive whole number."""
    try:
        number = whole_number(text)
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(f"{flag} {text}: must be a whole number, at least 1")
    return number


def refuse_unknown(argv: Sequence[str], flags: Iterable[Flag], prog: str) -> None:
    """Raise if argv contains an unknown flag."""
    known = _spellings(flags)
    for arg in argv:
        flag = arg.partition("=")[0].replace("_", "-")
        switch = re.sub(r"(?<=[-.])no-(?=[^.]*$)", "", flag)  # --no-x is the switch --x, turned off
        if flag.startswith("--") and not {flag, switch} & set(known):
            raise UserError(_unknown(flag, known, prog))


def split_task(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the task's name from the front of argv."""
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    return None, list(argv)


def known_task(task: str | None, prog: str) -> str:
    """Return the name of a task, after checking that the task exists."""
    if task is None:
        raise UserError(f"no task is named; type {prog} TASK, with one of {listed(registry.task_names(), 'or')}")
    registry.task_config(task)
    return task


def take_flag(argv: Sequence[str], flag: str) -> tuple[str | None, list[str]]:
    """Take one flag with its value out of argv, as ``--flag value`` or ``--flag=value``."""
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
    """Take all flags that start with a prefix out of argv, with their values."""
    taken: list[str] = []
    rest: list[str] = []
    group = rest
    for arg in argv:
        if arg.startswith("--"):
            group = taken if arg.startswith(prefix) else rest
        group.append(arg)
    return taken, rest


def by_flag(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Split argv into flags with their values; ``--flag=value`` becomes two parts.

    A word before the first flag counts as a flag without values.
    """
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


def is_given(argv: Sequence[str], flag: str) -> bool:
    """Return whether argv has a flag, as ``--the-flag value``, as ``--the-flag=value``, or with underscores."""
    return any(arg.partition("=")[0].replace("_", "-") == flag for arg in argv)


def _whole_number_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Let tyro read whole numbers with :func:`whole_number`."""
    if info.type is not int:
        return None
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: whole_number(args[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _in_form_of_tyro(argv: Sequence[str], default: Any, prog: str) -> list[str]:
    """Write flags as tyro reads them: switches without a value, and the values of a list as one word each.

    Sweeps of Weights & Biases write ``--x=True`` and ``--x=[1, 2]``, and users write ``--gpu-ids 0,1``.
    """
    groups, args = by_flag(argv), list[str]()
    known = {flag.spellings[0]: flag for flag in flags_of(default, [name for name, _ in groups])}
    for name, values in groups:
        flag, given = known.get(name.replace("_", "-")), " ".join(values)
        if flag is None or not values:
            args += [name, *values]
        elif not flag.metavar:
            if given.lower() not in BOOLEANS:
                raise UserError(f"{name} {given}: takes true or false; see {prog} --help")
            group, dot, last = flag.name.rpartition(".")
            args.append(f"--{flag.name}" if BOOLEANS[given.lower()] else f"--{group}{dot}no-{last}")
        elif given[0:1] + given[-1:] in {"[]", "()"} and " " in flag.metavar:  # it takes several values
            args += [name, *filter(None, (part.strip(" '\"") for part in given[1:-1].split(",")))]
        elif any(map(_NUMBERS.fullmatch, flag.metavar.split("|"))):
            args += [name, *filter(None, (part for value in values for part in value.split(",")))]
        else:
            args += [name, *values]
    return args


def _spellings(flags: Iterable[Flag]) -> list[str]:
    return [spelling for flag in (*flags, *HELP_FLAGS) for spelling in flag.spellings if flag.path != "task"]


def _unknown(flag: str, known: Iterable[str], prog: str) -> str:
    see = f"see {prog} --help"
    if not flag.startswith("-"):
        return f"{flag}: unexpected argument; {see}"
    near = did_you_mean(flag, known, "")
    return f"{flag}: unknown flag; {f'{near} ({see})' if near else see}"


def _one_line(box: str, argv: Sequence[str], prog: str, flags: Sequence[Flag]) -> str:
    """Convert tyro's error message, which may have a box and colors, to one line like this package's messages."""
    # First paragraph, without box and colors; if tyro cannot draw a box, it prints a title and lines of dashes
    lines = [line.strip("│ \t") for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()]
    rules = [i for i, line in enumerate(lines) if re.fullmatch(r"-{3,}", line)]
    lines = [line for line in lines[rules[0] + 1 if rules else 0 :] if not line.startswith(("╭", "╰"))]
    ends = (i for i, line in enumerate(lines) if not line or re.fullmatch(r"─.*|-{3,}", line))
    paragraph = " ".join(lines[: next(ends, len(lines))])
    # Unknown flag
    unknown = re.match(r"Unrecognized options?: (\S+?)(?:,|$| )", paragraph)
    if unknown:
        return _unknown(unknown[1], _spellings(flags), prog)
    see = f"see {prog} --help"
    # Value of a wrong type, or not one of the choices
    bad = re.match(r"Error parsing (\S+): |invalid choice .* for argument '(\S+)'\.", paragraph)
    if bad:
        flag = bad[1] or bad[2]
        given = next((v for name, v in reversed(by_flag(argv)) if name.replace("_", "-") == flag), [])
        takes = next((one.takes for one in flags if flag in one.spellings), "another value")
        return f"{' '.join([flag, *given])}: takes {takes}; {see}"
    # Missing value
    missing = re.match(r"Missing value for argument '(\S+)'", paragraph)
    if missing:
        return f"{missing[1]}: needs a value; {see}"
    return f"{paragraph.rstrip('.')}; {see}"
