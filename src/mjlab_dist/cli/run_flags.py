"""Command lines of commands that take the flags of a training run: train, check, verify, size-buffers."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from mjlab_dist.cli.flags import (
    COMPLETION,
    HELP_FIELDS,
    Field,
    Group,
    by_flag,
    fields_of,
    known_task,
    name_of,
    print_completion,
    print_help,
    split_task,
    take_help,
    values_of,
)
from mjlab_dist.config import Algorithm, TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.config.trust import chosen_places
from mjlab_dist.errors import UserError, did_you_mean
from mjlab_dist.messages import listening
from mjlab_dist.runs.run_dir import AUTO, check_same_run, find_named_run, find_run_to_resume, read_config_file

if TYPE_CHECKING:
    from mjlab_dist.cli.console import EventPrinter

# Fields of a run's config that choose the config to start from, so that they are read first
SELECTING = ("resume", "log_root", "run_name", "init_from", "ssh_config")

# Names of the flags on the short page of help of all commands that start ranks
EVERYDAY = (
    "algorithm",
    "config",
    "seed",
    "gpu_ids",
    "cpu_ranks",
    "hosts",
    "num_envs",
    "total_num_envs",
    "max_iterations",
    "total_timesteps",
)


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """Flags of these commands that are not fields of a run's config."""

    algorithm: Algorithm | None = None
    """Algorithm to train with. Its flags, --agent.*, start from the task's settings for it. Default: the task's own."""
    config: str | None = None
    """Config file of an earlier run; other flags replace its values."""
    trust: bool = False
    """Allow the config file of --config or of the resumed run to run any code."""


OwnT = TypeVar("OwnT", bound=RunFlags)


@dataclass(frozen=True, kw_only=True)
class CommandLine(Generic[OwnT]):
    """A command line whose flags are read as far as the config to start from depends on them."""

    # Name of the command
    prog: str
    # Task that is named
    task: str | None
    # The command's own flags
    own: OwnT
    # Values of SELECTING that are given
    values: Mapping[str, Any]
    # Other flags of the run's config, and unknown ones
    rest: Sequence[Group]
    # Flag that prints a page about flags, with its words
    page: Group | None
    # Flags on the short page of help
    everyday: Sequence[str]


def read_flags(argv: Sequence[str], prog: str, own: OwnT, everyday: Sequence[str]) -> CommandLine[OwnT]:
    """Read the command's own flags and those that choose the config to start from.

    Args:
        argv: The command line without the command.
        prog: Name of the command.
        own: The command's own flags with their defaults.
        everyday: Names of the flags on the short page of help.
    """
    task, flags = split_task(argv)
    page, groups = take_help(by_flag(flags))
    own_fields, general = fields_of(own), run_fields(general_config())
    fields = {**{name: general[name] for name in SELECTING}, **own_fields}
    if page is not None:  # mistakes in the command's other flags do not prevent help
        fields = {name: fields[name] for name in ("algorithm", "config", "trust", *SELECTING)}
    known = [group for group in groups if name_of(group[0], fields) is not None]
    values = values_of(fields, known, f"{prog} {task or 'TASK'}")
    own = dataclasses.replace(own, **{name: values.pop(name) for name in own_fields if name in values})
    validate_limits(own)
    rest = [group for group in groups if group not in known]
    return CommandLine(prog=prog, task=task, own=own, values=values, rest=rest, page=page, everyday=everyday)


def config_of(line: CommandLine[OwnT], **defaults: Any) -> TrainConfig:
    """Return the config of a task, a file or an earlier run, changed by defaults and the flags. Print help if asked."""
    # Config that the flags change
    prog, own, values, task, run = line.prog, line.own, dict(line.values), line.task, line.values.get("resume")
    with listening(lambda event: _printer().listen(event)):
        run_dir = None if run is None else _find_run(line, run)
    source = run_dir or (Path(own.config) if own.config is not None else None)
    if source is not None:
        base = read_config_file(source, trust=own.trust, uses_ssh="ssh_config" not in values)
        registry.task_config(base.task)  # refuses a task that is not installed
        if run_dir is None and task not in (None, base.task):
            raise UserError(
                f"--config {source}: is a config of {base.task}, not of {task}; name {base.task}, or no task"
            )
        if own.algorithm not in (None, base.agent.algorithm):
            raise UserError(
                f"--algorithm {own.algorithm}: {source} is a config of {base.agent.algorithm}; remove the flag"
            )
    elif task is not None:
        base = registry.task_config(task, own.algorithm)
    else:
        base = _without_task(line)
    base = dataclasses.replace(base, **defaults)
    # Help
    command = f"{prog} {base.task or 'TASK'}"
    own_fields = {**fields_of(own), **HELP_FIELDS}
    if line.page is not None:
        _show_page(line, line.page, base, own_fields, command)
    # Values of the flags
    if run_dir is not None:
        values["resume"] = str(run_dir)
    values |= flag_values(base, line.rest, command, own_fields)
    config = with_values(base, values)
    if run == AUTO and run_dir is not None:
        check_same_run(config, dataclasses.replace(base, resume=str(run_dir)))
    # Name the machines and directories that a file chooses, before anything is started there
    given = [*values, "log_root"] if run_dir is not None else list(values)
    if source is not None and (places := chosen_places(base, given)):
        _printer().listen({"kind": "status", "text": f"{run_dir or own.config} sets {places}"})
    return config


def flag_values(config: TrainConfig, groups: Sequence[Group], prog: str, others: Mapping[str, Field]) -> dict[str, Any]:
    """Return the values of a config that flags give, by dotted name. Errors suggest the command's other flags too."""
    if not groups:
        return {}
    # First the functions of terms and models, because their parameters are flags
    fields = run_fields(config)
    names = [(name_of(flag, fields) or "", words) for flag, words in groups]
    functions = {name: words[0] for name, words in names if name.endswith((".func", ".model")) and len(words) == 1}
    fields = run_fields(with_values(config, functions)) if functions else fields
    values = values_of({**fields, **others}, groups, prog)
    return {name: value for name, value in values.items() if name not in others}


def general_config() -> TrainConfig:
    """Return a run's config with the defaults that hold for any task. Its ``env`` is missing."""
    return TrainConfig(task="", env=typing.cast("Any", None))


def run_fields(config: TrainConfig) -> dict[str, Field]:
    """Return the flags of a run's config. The task is the first argument, not a flag."""
    return {name: field for name, field in fields_of(config).items() if name != "task"}


def _without_task(line: CommandLine[OwnT]) -> TrainConfig:
    """Return the general config to show help; without a request for help, raise."""
    if line.page is not None:
        flag, words = line.page
        if flag == "--help" and not "".join(words[:1]).startswith("env"):
            return general_config()
        asked = " ".join([flag, *words])
        raise UserError(f"{asked}: these flags depend on the task; type {line.prog} TASK {asked}")
    unknown = [group for group in line.rest if not group[0].startswith("--env.")]
    values_of({**run_fields(general_config()), **fields_of(line.own), **HELP_FIELDS}, unknown, f"{line.prog} TASK")
    return registry.task_config(known_task(None, line.prog))  # raises


def _show_page(
    line: CommandLine[OwnT], page: Group, base: TrainConfig, own: Mapping[str, Field], command: str
) -> NoReturn:
    """Print the everyday flags, all flags, those whose names start with a text, or a script; and exit."""
    summary, (flag, words) = inspect.getdoc(type(line.own)) or "", page
    # Everyday flags, without those of the env, which take a while to list
    if flag == "--help" and not words:
        if line.task is None:
            tasks = textwrap.fill(f"Tasks: {', '.join(registry.task_names())}", 80, break_on_hyphens=False)
            summary = f"{summary}\n\n{tasks}"
        general = run_fields(dataclasses.replace(base, env=typing.cast("Any", None)))
        print_help({**general, **own}, command, summary, [*line.everyday, *HELP_FIELDS])
    # Completion, or all flags
    fields = {**run_fields(base), **own}
    if flag == COMPLETION:
        if not line.prog.endswith("train"):
            raise UserError(f"{COMPLETION}: only train has it")
        print_completion(fields, "".join(words))
    if flag != "--help":
        print_help(fields, command, summary)
    # Flags whose names start with a text
    start = words[0].replace("-", "_")
    spelled = {name: name.replace("-", "_") for name in fields}
    inside = [name for name, plain in spelled.items() if f"{plain}.".startswith(f"{start}.")]
    chosen = inside or [name for name, plain in spelled.items() if plain.startswith(start)]
    if not chosen:
        parts = [name.replace("_", "-").split(".") for name in fields]
        prefixes = {".".join(names[: i + 1]) for names in parts for i in range(len(names))}
        near = did_you_mean(start.replace("_", "-"), prefixes, f"see {command} --help-all")
        raise UserError(f"--help {words[0]}: no flag starts with it; {near}")
    print_help({name: fields[name] for name in chosen}, command, summary)


def _find_run(line: CommandLine[OwnT], run: str) -> Path | None:
    """Return the directory of the run that ``--resume`` names; None if ``--resume auto`` finds no run."""
    log_root = line.values.get("log_root", TrainConfig.log_root)
    if run == AUTO:
        if line.task is None:
            raise UserError(f"--resume {AUTO}: no task is named; type {line.prog} TASK --resume {AUTO}")
        return find_named_run(log_root, line.task, line.values.get("run_name", ""))
    if line.own.config is not None:
        raise UserError(
            f"--resume {run}: takes the run's own config, not --config {line.own.config}; drop one of the two"
        )
    if "init_from" in line.values:
        raise UserError(f"--resume {run}: continues from the run's own checkpoint; drop --init-from")
    return find_run_to_resume(log_root, line.task, run)


def _printer() -> EventPrinter:
    from mjlab_dist.cli.console import EventPrinter, make_console  # imports rich

    # Standard error, because --print-config writes YAML to standard output
    return EventPrinter(make_console(stderr=True, soft_wrap=True))
