"""Help pages: the everyday flags by group, or all flags of a config. Imports neither torch nor tyro."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.signatures import PARAMETERS, REQUIRED, parameters_of
from mjlab_dist.config.type_words import in_words, is_union
from mjlab_dist.errors import UserError
from mjlab_dist.wording import did_you_mean

# Groups of flags on the short page: the title of each group, and its flags as paths into the config
EVERYDAY = {
    "Run": ("config", "seed", "run_name", "log_root", "print_config", "dry_run", "verbose"),
    "Devices": ("gpu_ids", "cpu_ranks", "hosts"),
    "Budget": ("num_envs", "total_num_envs", "max_iterations", "total_timesteps"),
    "Saving and resuming": (
        "resume",
        "init_from",
        "checkpoint.interval",
        "checkpoint.keep_last",
        "max_restarts",
        "hang_timeout",
    ),
    "Synchronizing": ("sync.period", "sync.compression", "sync.check_interval", "fsdp_devices"),
    "Logging": ("logger", "wandb_project", "video_interval"),
}

# Maximum width of a page, in characters
MAX_WIDTH = 120

_SCALARS = {int: "INT", float: "FLOAT", str: "STR", type(None): "None"}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag, as a help page shows it."""

    # Path into the config, such as sync.check_interval
    path: str
    # Form of the value, such as INT; empty for a switch
    metavar: str
    # Form of the value in words, such as "a whole number"
    takes: str = ""
    # Default value; empty if the flag has no default, or is a switch that is off by default
    default: str = ""
    # Meaning
    text: str

    @property
    def name(self) -> str:
        """The flag as it is typed, without the two leading dashes."""
        return self.path.replace("_", "-")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The forms in which users type the flag. A switch that is on by default has a second form to turn it off."""
        if self.metavar or not self.default:
            return (f"--{self.name}",)
        group, dot, name = self.name.rpartition(".")
        return f"--{self.name}", f"--{group}{dot}no-{name}"

    @property
    def usage(self) -> str:
        """The flag and the form of its value, as a help page shows them."""
        if self.metavar or not self.default:
            return f"--{self.name} {self.metavar}".rstrip()
        group, dot, name = self.name.rpartition(".")
        return f"--{group}{dot}[no-]{name}"


@dataclass(frozen=True)
class HelpRequest:
    """A request for help."""

    # Show only flags that start with this text
    prefix: str | None = None
    # Show all flags
    everything: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """Short help of a command that takes the flags of a training run."""

    # One sentence that says what the command does
    summary: str
    # Flags of this command that are not fields of a run's config
    own: Sequence[Flag] = ()
    # Flags to show, in the form of EVERYDAY
    groups: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=lambda: EVERYDAY)

    @property
    def all_own(self) -> tuple[Flag, ...]:
        """Flags that are not fields of a run's config: --config, --trust, and the command's own flags."""
        return CONFIG_FLAG, TRUST_FLAG, *self.own


_MORE = (
    Flag(path="help env.rewards", metavar="", text="Flags of one group: env.rewards, env.sim, agent, checkpoint, ..."),
    Flag(path="help-all", metavar="", text="All flags."),
)

# Help flags of all commands that have other flags too
HELP_FLAGS = (
    Flag(path="help", metavar="", text="Print help."),
    Flag(path="help-all", metavar="", text="Print help on all flags."),
)

CONFIG_FLAG = Flag(path="config", metavar="FILE", text="Config file of an earlier run; other flags replace its values.")

TRUST_FLAG = Flag(
    path="trust",
    metavar="",
    text="Allow the config file of --config or of the resumed run to run any code.",
)


def take_help(argv: Sequence[str]) -> tuple[HelpRequest | None, list[str]]:
    """Take ``-h``, ``--help``, ``--help PREFIX`` or ``--help-all`` out of argv."""
    for i, arg in enumerate(argv):
        if arg == "--help-all":
            return HelpRequest(everything=True), [*argv[:i], *argv[i + 1 :]]
        if arg in ("-h", "--help"):
            rest = argv[i + 1 :]
            if rest and not rest[0].startswith("-"):
                return HelpRequest(rest[0]), [*argv[:i], *rest[1:]]
            return HelpRequest(), [*argv[:i], *rest]
    return None, list(argv)


def flags_of(config: Any, names: Collection[str] = ()) -> list[Flag]:
    """Return all flags of a config, in the order of its fields."""
    return list(_walk("", config, type(config), "", {name.lstrip("-").replace("-", "_") for name in names}))


def general_config() -> TrainConfig:
    """Return a run's config with the defaults that hold for any task. Its ``env`` is missing."""
    return TrainConfig(task="", env=typing.cast("Any", None))


def config_page(config: Any, prog: str) -> str:
    """Return a page of all flags of a config, by group."""
    summary = _paragraphs(inspect.getdoc(type(config)) or "")
    flags = [flag for flag in flags_of(config) if flag.path != "task"]
    return "\n\n".join([f"usage: {prog} [flags]", summary, *_tables(flags)])


def short_page(page: Page, prog: str, config: TrainConfig, tasks: Sequence[str] = ()) -> str:
    """Return a page of the everyday flags."""
    known = {flag.path: shortened(flag) for flag in flags_of(config)}
    known |= {flag.path: flag for flag in page.all_own}
    groups = {title: [known[path] for path in paths if path in known] for title, paths in page.groups.items()}
    width = _left_width(flag for flags in groups.values() for flag in flags)
    task = "TASK " if tasks else ""
    command = f"{prog} {task}".rstrip()
    parts = [
        f"usage: {command} [flags]" + (f"\n       {prog} --config RUN/config.yaml [flags]" if tasks else ""),
        _paragraphs(page.summary),
        _paragraphs(f"Tasks: {', '.join(tasks)}") if tasks else "",
        *(f"{title}:\n{_table(flags, width)}" for title, flags in groups.items() if flags),
        f"More flags:\n{_table(_MORE, width)}",
    ]
    return "\n\n".join(part for part in parts if part)


def prefix_page(prefix: str, prog: str, config: TrainConfig) -> str:
    """Return a page of the flags that start with a prefix, by group, with their full texts."""
    wanted = prefix.lstrip("-").replace("_", "-")
    flags = [flag for flag in flags_of(config) if flag.path != "task"]
    inside = [flag for flag in flags if f"{flag.name}.".startswith(f"{wanted}.")]
    chosen = inside or [flag for flag in flags if flag.name.startswith(wanted)]
    if not chosen:
        raise UserError(f"--help {prefix}: no flag starts with it; {_nearest(wanted, flags, prog)}")
    return "\n\n".join([f"usage: {prog} [flags]", *_tables(chosen)])


def _nearest(wanted: str, flags: Iterable[Flag], prog: str) -> str:
    names = [flag.name.split(".") for flag in flags]
    prefixes = {".".join(parts[: i + 1]) for parts in names for i in range(len(parts))}
    return did_you_mean(wanted, prefixes, f"see {prog} --help-all")


def _walk(path: str, value: Any, hint: Any, text: str, names: Collection[str]) -> Iterator[Flag]:
    """Yield the flags of a value: one flag, or the flags of its fields or entries."""
    if names and path and not any(f"{name}.".startswith(f"{path.replace('-', '_')}.") for name in names):
        return
    if dataclasses.is_dataclass(value):
        hints, docs = typing.get_type_hints(type(value)), {} if names else _docs(type(value))
        for field in dataclasses.fields(value):
            inner = f"{path}.{field.name}" if path else field.name
            if field.name in PARAMETERS:
                yield from _parameters(inner, value, field.name)
                continue
            yield from _walk(inner, getattr(value, field.name), hints[field.name], docs.get(field.name, ""), names)
    elif isinstance(value, Mapping) and value and not is_union(hint):
        entry = typing.get_args(hint)[1]
        for key, part in value.items():
            yield from _walk(f"{path}.{key}", part, entry, "", names)
    elif isinstance(value, Mapping) and not is_union(hint):
        return
    elif not (value is None and dataclasses.is_dataclass(hint)):
        yield Flag(path=path, metavar=_metavar(hint), takes=in_words(hint), default=_default(value), text=text)


def _parameters(path: str, config: Any, field: str) -> Iterator[Flag]:
    """Yield the flags of a function's parameters: first the parameters that the config sets, then the others."""
    known, given = parameters_of(config, field), getattr(config, field)
    defaults = {name: one.default for name, one in known.items() if one.default is not REQUIRED}
    for name, value in {**given, **{n: d for n, d in defaults.items() if n not in given}}.items():
        text, hint = known[name].text if name in known else "", _type_of(value)
        metavar, takes = _metavar(hint), in_words(hint)
        yield Flag(path=f"{path}.{name}", metavar=metavar, takes=takes, default=_default(value), text=text)


def _type_of(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple[type(value[0]) if value else str, ...]
    return type(value)


def _metavar(hint: Any) -> str:
    """Return the form of the values of a type, such as INT|auto."""
    args = typing.get_args(hint)
    if is_union(hint):
        return "|".join(_metavar(arg).strip("{}").replace(",", "|") for arg in args)
    if typing.get_origin(hint) is Literal:
        return f"{{{','.join(map(str, args))}}}"
    if typing.get_origin(hint) is tuple:
        return f"{_metavar(args[0])} ..." if args[-1] is Ellipsis else " ".join(map(_metavar, args))
    if typing.get_origin(hint) is dict:
        return f"{' '.join(map(_metavar, args))} ..."
    return "" if hint is bool else _SCALARS.get(hint, "VALUE")


def _default(value: Any) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    if isinstance(value, Mapping):
        return " ".join(f"{key} {part}" for key, part in value.items())
    return "" if value is None or value is False else str(value)


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


def shortened(flag: Flag) -> Flag:
    """Cut a flag's text at the first full stop or semicolon.

    If the flag has no default, remove ``|None`` from the form of its value, such as ``INT|None``. A flag that takes
    predefined names or any other text, such as --logger, is shown as ``NAME ...``.
    """
    text = re.split(r"[.;](?:\s|$)", flag.text, maxsplit=1)[0] + "."
    metavar = flag.metavar if flag.default else flag.metavar.removesuffix("|None")
    metavar = "NAME ..." if metavar.endswith("|STR ...") else metavar
    return dataclasses.replace(flag, text=text, metavar=metavar)


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def _left_width(flags: Iterable[Flag]) -> int:
    """Return the width of the column of flags. The text of a longer flag starts on the next line."""
    return min(max((len(flag.usage) for flag in flags), default=0), max(24, 3 * _width() // 10)) + 4


def _paragraphs(text: str) -> str:
    return "\n\n".join(textwrap.fill(" ".join(p.split()), _width(), break_on_hyphens=False) for p in text.split("\n\n"))


def _tables(flags: Sequence[Flag]) -> list[str]:
    """Return one table per group of flags."""
    groups: dict[str, list[Flag]] = {}
    for flag in flags:
        groups.setdefault(flag.name.rpartition(".")[0], []).append(flag)
    width = _left_width(flags)
    return [f"{title}:\n{_table(group, width)}" if title else _table(group, width) for title, group in groups.items()]


def _table(flags: Sequence[Flag], left: int | None = None) -> str:
    left = left or _left_width(flags)
    lines: list[str] = []
    for flag in flags:
        # NUL stands for a space, so that a default is not wrapped in the middle.
        default = f"(default:\0{flag.default.replace(' ', chr(0))})" if flag.default else ""
        text = f"{flag.text} {default}".strip()
        right = textwrap.wrap(text, max(20, _width() - left), break_long_words=False, break_on_hyphens=False) or [""]
        usage = f"  {flag.usage}"
        if len(usage) + 2 <= left:
            lines.append(f"{usage:<{left}}{right.pop(0)}")
        else:
            lines.append(usage)
        lines += [" " * left + line for line in right]
    return "\n".join(line.rstrip() for line in lines).replace("\0", " ")
