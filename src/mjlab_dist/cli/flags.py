"""Flags of a config, one for each of its values, with types and help texts. tyro reads them, and prints help."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from mjlab_dist.config import registry
from mjlab_dist.config.limits import is_union
from mjlab_dist.config.serialization import as_tuples
from mjlab_dist.config.signatures import PARAMETERS, REQUIRED, Parameter, parameters_of
from mjlab_dist.errors import UserError, did_you_mean, listed, printable

if TYPE_CHECKING:
    from tyro.constructors import PrimitiveConstructorSpec, PrimitiveTypeInfo

ConfigT = TypeVar("ConfigT")

# A flag, and the words after it
Group = tuple[str, list[str]]

# tyro's flag for a script that completes flags
COMPLETION = "--tyro-print-completion"

# Flags that print a page about flags
PAGES = ("--help", "--help-all", COMPLETION)

# What to use instead of flags that mjlab, Isaac Lab, rsl_rl and other trainers have, by the last word of the flag
ALIASES = {
    **dict.fromkeys(("device", "gpu", "gpus"), "--gpu-ids 0, or --gpu-ids None for the CPU"),
    "cpu": "--gpu-ids None",
    **dict.fromkeys(("distributed", "num_gpus", "nproc_per_node"), "--gpu-ids all, or the numbers of some GPUs"),
    "nnodes": "--hosts",
    "experiment_name": "--run-name",
    **dict.fromkeys(("log_dir", "logdir", "output_dir"), "--log-root"),
    **dict.fromkeys(("load_run", "wandb_run_path"), "--resume"),
    **dict.fromkeys(("checkpoint", "load_checkpoint"), "--init-from"),
    "checkpoint_file": "--checkpoint",
    "save_interval": "--checkpoint.interval",
    "log_project_name": "--wandb-project",
    "video": "--video-interval",
    **dict.fromkeys(("headless", "enable_cameras"), "remove it: no command opens a window unasked"),
    "lr": "--agent.learning-rate",
    **dict.fromkeys(("n_steps", "num_steps"), "--agent.num-steps-per-env"),
    **dict.fromkeys(("n_epochs", "update_epochs"), "--agent.num-learning-epochs"),
    "gae_lambda": "--agent.lam",
    **dict.fromkeys(("clip_range", "clip_coef"), "--agent.clip-param"),
    "ent_coef": "--agent.entropy-coef",
    "vf_coef": "--agent.value-loss-coef",
    "init_noise_std": "--agent.init-std",
    "empirical_normalization": "--agent.obs-normalization",
}

# Words after a flag that mean one of its values, by the name of the field
WORDS = {"gpu_ids": {"cpu": "None", "none": "None"}}

# Values of switches, in lowercase
BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """A value of a config that a flag sets."""

    # Type of the value
    hint: Any
    # Current value
    value: Any
    # Meaning
    text: str = ""
    # Converts the words of a flag, if the value has no type that tyro knows
    read: Callable[[list[str]], Any] | None = None


def fields_of(config: Any) -> dict[str, Field]:
    """Return all values of a config that flags can set, with their dotted names as keys."""
    return dict(_walk("", config, type(config), ""))


def _walk(name: str, value: Any, hint: Any, text: str) -> Iterator[tuple[str, Field]]:
    """Yield the names and fields of a value: one, or those of its parts. Mappings of a union type are one value."""
    if dataclasses.is_dataclass(value):
        hints, docs = typing.get_type_hints(type(value)), _docs(type(value))
        for part in dataclasses.fields(value):
            inner = f"{name}.{part.name}".lstrip(".")
            if part.name in PARAMETERS:
                yield from _parameters(inner, value, part.name)
            else:
                yield from _walk(inner, getattr(value, part.name), hints[part.name], docs.get(part.name, ""))
    elif isinstance(value, Mapping) and not is_union(hint):
        entry = typing.get_args(hint)[1]
        for key, part in value.items():
            if "." in key:  # no dotted name can refer to it
                continue
            has_parts = dataclasses.is_dataclass(part) or isinstance(part, Mapping)
            if has_parts:
                yield f"{name}.{key}", Field(hint=None, value=None, text="None removes this entry.")
            yield from _walk(f"{name}.{key}", part, entry if has_parts else entry | None, "")
    elif not (value is None and dataclasses.is_dataclass(hint)):
        yield name, Field(hint=hint, value=value, text=text)


def _parameters(name: str, config: Any, field: str) -> Iterator[tuple[str, Field]]:
    """Yield the parameters of a function: first those that the config sets, then the others."""
    known, given = parameters_of(config, field), getattr(config, field)
    unknown = Parameter(default=REQUIRED, annotation="", text="")
    for parameter in dict.fromkeys([*given, *known]):
        about = known.get(parameter, unknown)
        value = given.get(parameter, None if about.default is REQUIRED else about.default)
        yield f"{name}.{parameter}", _parameter(about, value)


def _parameter(about: Parameter, value: Any) -> Field:
    """Return the field of a parameter. Its type is that of its value, because no module of terms is imported here."""
    first = value[0] if isinstance(value, tuple) and value else value
    is_alike = not isinstance(value, tuple) or all(type(part) is type(first) for part in value)
    if isinstance(first, bool | int | float | str) and is_alike:
        is_float = (
            type(first) is int and "float" in about.annotation and not re.search("int|str|bool", about.annotation)
        )
        kind = float if is_float else type(first)
        hint = tuple[kind, ...] if isinstance(value, tuple) else kind
        return Field(hint=hint | None if about.can_be_none else hint, value=value, text=about.text)
    read = functools.partial(_read, about.annotation, isinstance(value, tuple))
    return Field(hint=Any, value=value, text=about.text, read=read)


def _read(annotation: str, is_tuple: bool, words: list[str]) -> Any:
    """Read the words of a flag as YAML, or as texts if the parameter is annotated as texts."""
    import yaml  # most command lines do not need it

    is_text = "str" in annotation and not any(kind in annotation for kind in ("int", "float", "bool"))
    if not words:
        raise ValueError("a value is missing")
    try:
        read = [word if is_text and word != "None" else _scalar(yaml.safe_load(word)) for word in words]
    except yaml.YAMLError as error:
        raise ValueError("not YAML; write a value, or lists such as [[0, 1], [2, 3]]") from error
    if len(read) == 1 and not (is_tuple or annotation.startswith("tuple")):
        return as_tuples(read[0])
    return as_tuples(read[0] if len(read) == 1 and isinstance(read[0], list) else read)


def _scalar(value: Any) -> Any:
    """Convert None, and numbers such as 1e-3, because YAML reads them as strings."""
    if value == "None":
        return None
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _docs(config_type: type) -> dict[str, str]:
    """Return the docstrings of a dataclass's fields by name, including the fields of its bases."""
    docs: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        docs |= _docs_of_module(base.__module__).get(base.__qualname__, {})
    return docs


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """Read the docstrings of all fields from a module's source. Return them by class and field."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):  # built in, or installed without source
        return {}
    docs: dict[str, dict[str, str]] = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field, after in zip(cls.body, cls.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=field_name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs.setdefault(cls.name, {})[field_name] = " ".join(text.split())
    return docs


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
    pages = [group for group in groups if group[0].replace("_", "-") in PAGES]
    return next(iter(pages), None), [group for group in groups if group not in pages]


def take_env(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Take out the flags that change a task's env. Return them, and the other flags."""
    changes = [group for group in groups if group[0].startswith("--env.")]
    return changes, [group for group in groups if group not in changes]


def split_name(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the name of a task or a run from the front of argv."""
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    return None, list(argv)


def split_task(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the task's name from argv: the first word, the one after --task, or the last one after other words."""
    name, flags = split_name([part for word in argv for part in re.split(r"(?<=^--task)=", word)])
    if name is None and "--task" in flags[:-1]:
        index = flags.index("--task")
        return flags[index + 1], flags[:index] + flags[index + 2 :]
    if name is None and flags and (len(flags) == 1 or not flags[-2].startswith("--") or flags[-2] in PAGES):
        name = flags.pop() if flags[-1] in registry.task_names() else None
    return name, flags


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

    tyro takes half a second for all flags of a task, so it gets only those that are given.
    """
    if not groups:
        return {}
    args, chosen = list[str](), dict[str, Field]()
    for flag, typed in groups:
        name = name_of(flag, fields)
        if name is None:
            raise UserError(f"{printable(flag)}: there is no such flag; {_instead(flag, fields, prog)}")
        words = [WORDS.get(name, {}).get(word, word) for word in typed]
        chosen[name], hint = fields[name], fields[name].hint
        if hint in (bool, bool | None) and words != ["None"]:
            chosen[name] = dataclasses.replace(fields[name], hint=bool)
            args += _switch(flag, words)
        elif "tuple" in str(hint):
            args += [flag, *_separated(words, is_number="str" not in str(hint))]
        else:
            args += [flag, *words]
    return _tyro(chosen, args, prog)


def _instead(flag: str, fields: Mapping[str, Field], prog: str) -> str:
    """Return what to use instead of an unknown flag."""
    spelled = [f"--{name.replace('_', '-')}" for name in fields]
    parts = flag.removeprefix("--").partition("=")[0].replace("_", "-").split(".")  # Hydra writes agent.gamma=0.9
    # Flags of other programs
    alias = ALIASES.get(parts[-1].replace("-", "_"), "")
    if alias.startswith("remove"):
        return alias
    if alias.replace(",", " ").partition(" ")[0] in spelled:
        return f"use {alias}"
    # Flags with the same last word, such as --agent.learning-rate for --learning-rate
    distances: dict[str, tuple[int, int, float]] = {}
    for known in spelled:
        names = known.removeprefix("--").split(".")
        if names[-1] == parts[-1]:
            ratio = difflib.SequenceMatcher(None, flag, known).ratio()
            distances[known] = (-len({*names} & {*parts}), len(names), -ratio)
    if distances:
        return f"did you mean {min(distances, key=distances.__getitem__)}?"
    return did_you_mean(flag.replace("_", "-"), spelled, f"see {prog} --help", max_names=3)


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
