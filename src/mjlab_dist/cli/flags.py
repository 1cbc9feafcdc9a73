"""Flags of a config, one for each of its values. tyro reads them, and prints help and errors."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from mjlab_dist.cli.fields import Field, fields_of
from mjlab_dist.config import registry
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed, nearest, printable

if TYPE_CHECKING:
    from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

ConfigT = TypeVar("ConfigT")

# A flag, and the words after it
Group = tuple[str, list[str]]

# tyro's flag for a script that completes flags
COMPLETION = "--tyro-print-completion"

# Values of switches, in lowercase
BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}

# Flags of all commands that have other flags too
HELP_FIELDS = {
    "help_all": Field(hint=bool, value=False, text="Show all flags, or with --help env.rewards those of one group.")
}


def parse(default: ConfigT, groups: Sequence[Group], prog: str) -> ConfigT:
    """Return a default config, without nested configs, changed by flags. Print help and exit if requested."""
    page, groups = take_help(groups)
    fields = fields_of(default)
    if page is not None:
        print_help(fields, prog, inspect.getdoc(type(default)) or "")
    return dataclasses.replace(typing.cast("Any", default), **values_of(fields, groups, prog))


def by_flag(argv: Sequence[str]) -> list[Group]:
    """Split argv into flags with their words. A word before the first flag counts as a flag."""
    groups: list[Group] = []
    for arg in argv:
        if arg.startswith("--") or arg == "-h":
            flag, is_equal, word = arg.partition("=")
            groups.append((flag if flag != "-h" else "--help", [word] if is_equal else []))
        elif groups:
            groups[-1][1].append(arg)
        else:
            groups.append((arg, []))
    return groups


def take_help(groups: Sequence[Group]) -> tuple[Group | None, list[Group]]:
    """Take out the flags that print a page about flags and exit. Return the first of them, and the other flags."""
    pages = [group for group in groups if group[0].replace("_", "-") in ("--help", "--help-all", COMPLETION)]
    return next(iter(pages), None), [group for group in groups if group not in pages]


def take_env(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Take out the flags that change a task's env. Return them, and the other flags."""
    changes = [group for group in groups if group[0].startswith("--env.")]
    return changes, [group for group in groups if group not in changes]


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


def name_of(flag: str, fields: Mapping[str, Field]) -> str | None:
    """Return the name of the field that a flag sets; a flag such as ``--agent.no-capture`` turns a switch off."""
    if not flag.startswith("--"):
        return None
    typed = flag.removeprefix("--").replace("-", "_")
    spelled = {name.replace("-", "_"): name for name in fields}
    return spelled.get(typed) or spelled.get(re.sub(r"(^|\.)no_(?=[^.]*$)", r"\1", typed))


def values_of(fields: Mapping[str, Field], groups: Sequence[Group], prog: str) -> dict[str, Any]:
    """Return the values that flags give, by the names of the fields.

    tyro takes half a second for all flags of a task, so it gets only those that are given, and, for an unknown one,
    those with a similar name, of which it names the closest.
    """
    if not groups:
        return {}
    names = [name_of(flag, fields) for flag, _ in groups]
    spelled = {f"--{name.replace('_', '-')}": name for name in fields}
    args, chosen = list[str](), dict[str, Field]()
    for name, (flag, words) in zip(names, groups, strict=True):
        if name is None:
            chosen |= {spelled[near]: fields[spelled[near]] for near in nearest(flag.replace("_", "-"), spelled, 20)}
            args += map(printable, [flag, *words])
            continue
        chosen[name], hint = fields[name], fields[name].hint
        if hint in (bool, bool | None) and words != ["None"]:
            chosen[name] = dataclasses.replace(fields[name], hint=bool)
            args += _switch(flag, words)
        elif "tuple" in str(hint):
            args += [flag, *_separated(words, is_number="str" not in str(hint))]
        else:
            args += [flag, *words]
    values = _tyro(chosen, args, prog)
    return {name: values[name] for name in names if name is not None}


def print_help(fields: Mapping[str, Field], prog: str, summary: str, everyday: Sequence[str] | None = None) -> NoReturn:
    """Print help on all flags, or on the everyday flags only, each with the start of its text, and exit."""
    import tyro

    shown = {name: fields[name] for name in everyday or fields if fields[name].hint is not None}
    markers: list[Any] = []
    if everyday:
        markers.append(tyro.conf.DisallowNone)
        for name, field in shown.items():
            shown[name] = dataclasses.replace(field, text=re.split(r"[.;](?:\s|$)", field.text, maxsplit=1)[0])
    _tyro(shown, ["--help"], prog, is_short=bool(everyday), description=summary, config=markers)
    raise AssertionError("tyro exits after printing help")


def print_completion(fields: Mapping[str, Field], shell: str) -> NoReturn:
    """Print a script with which a shell completes the flags of ``train``, and exit."""
    if shell not in ("bash", "zsh"):
        raise UserError(f"{COMPLETION} {shell}: takes bash or zsh")
    _tyro(fields, [COMPLETION, shell], "train")
    raise AssertionError("tyro exits after printing the script")


def _tyro(
    fields: Mapping[str, Field], args: Sequence[str], prog: str, *, is_short: bool = False, **options: Any
) -> dict[str, Any]:
    """Let tyro read flags into a dataclass with one member per field. Return all values by name."""
    import tyro  # slow; a command without flags does not need it

    members: list[tuple[str, Any]] = []
    for name, field in fields.items():
        is_absent = (
            field.value is None or field.value is False or (isinstance(field.value, str | tuple) and not field.value)
        )
        mark = tyro.conf.arg(
            name=name,
            help=field.text,
            metavar="..." if is_short and "tuple" in str(field.hint) else None,
            help_behavior_hint="" if is_absent else None,
        )
        # On help pages, a switch that is off has one form; the forms of one that is on would be named wrongly
        hint = tyro.conf.FlagCreatePairsOff[bool] if args == ["--help"] and field.value is False else field.hint
        marks = [mark] if field.read is None else [mark, _untyped(field.read)]
        members.append((f"flag_{len(members)}", Annotated[(hint, *marks)]))
    flags = dataclasses.make_dataclass("Flags", members, namespace={"__doc__": ""})
    default = flags(*(field.value for field in fields.values()))
    rules = tyro.constructors.ConstructorRegistry()
    rules.primitive_rule(_whole_number_rule)
    with rules:
        read = tyro.cli(flags, default=default, args=args, prog=prog, **options)
    return {name: getattr(read, member) for name, (member, _) in zip(fields, members, strict=True)}


def _untyped(read: Callable[[list[str]], Any]) -> PrimitiveConstructorSpec[Any]:
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="YAML",
        instance_from_str=read,
        is_instance=lambda _: True,
        str_from_instance=lambda value: [json.dumps(value, default=str)],  # JSON is YAML
    )


def _whole_number_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Let tyro read whole numbers such as 1e3."""
    if info.type is not int:
        return None
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda args: _whole_number(args[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def _whole_number(text: str) -> int:
    """Convert a text such as 1000, 1_000 or 1e3 to a whole number."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _separated(words: Sequence[str], *, is_number: bool) -> list[str]:
    """Separate numbers that users write as 0,1 and sweeps as [0, 1], and texts that sweeps write as ['a', 'b']."""
    text = " ".join(words)
    if is_number:
        return [part for part in re.split(r"[][(), ]+", text) if part]
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # such as a regular expression
        return list(words)
    return list(map(str, values)) if isinstance(values, list | tuple) else list(words)


def _switch(flag: str, words: Sequence[str]) -> list[str]:
    """Return the form of a switch without a value, for one such as ``--agent.capture=False``, as sweeps write it."""
    group, dot, last = flag.removeprefix("--").rpartition(".")
    if len(words) != 1 or words[0].lower() not in BOOLEANS or re.match("no[-_]", last):
        return [flag, *words]
    return [flag if BOOLEANS[words[0].lower()] else f"--{group}{dot}no-{last}"]
