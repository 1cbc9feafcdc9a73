"""completion: scripts for bash, zsh and fish, and their suggestions. Imports neither torch nor tyro.

The scripts call this command with the words of the command line whenever the user presses Tab. The command prints one
suggestion per line: the suggested word, a tab character and the meaning of the word. If the shell should complete file
names instead, the command exits with 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mjlab_dist import registry
from mjlab_dist.cli.help import HELP_FLAGS, Flag, flags_of, general_config, shortened
from mjlab_dist.cli.main import SUMMARIES
from mjlab_dist.config import CompareConfig, EvaluateConfig, ExportConfig, PackConfig, PlayConfig, WatchConfig
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.wording import did_you_mean, listed

SCRIPTS = {
    "bash": "mjlab-dist completion bash >> ~/.bashrc",
    "zsh": "mjlab-dist completion zsh >> ~/.zshrc",
    "fish": "mjlab-dist completion fish >> ~/.config/fish/config.fish",
}
"""How to install the script of each shell."""

PATHS = {
    "checkpoint", "config", "dir", "init_from", "log_root", "mjcf", "nan_dump", "output", "plot", "resume",
    "robots_dir", "run", "ssh_config", "torchrunx_log_dir", "video",
}  # fmt: skip
"""Flags whose values are files or directories. A term's parameter with the name ``file`` also takes a file."""

_HELP_ON_GROUP = Flag(path="help", metavar="GROUP", text="Print the everyday flags, or those of a group.")

# Suggested words, each with its meaning. A word that ends with a dot is the start of several flags.
Suggestions = dict[str, str]


def main(argv: Sequence[str], prog: str) -> None:
    """Print the script of a shell. If argv starts with ``--``, print suggestions for its last word.

    Raises:
        UserError: If argv is not the name of one shell.
    """
    if argv[:1] == ["--"]:
        found = suggestions(argv[1:])
        if found is None:
            sys.exit(Exit.FAILED)
        for word, meaning in found.items():
            print(f"{word}\t{meaning}")
    elif argv in (["-h"], ["--help"]):
        install = "\n".join(f"  {line}" for line in SCRIPTS.values())
        print(f"usage: {prog} {{{','.join(SCRIPTS)}}}\n")
        print(f"Print a script that completes tasks, flags and values. Install it for your shell:\n{install}")
    elif len(argv) == 1 and argv[0] in SCRIPTS:
        print(Path(__file__).with_suffix(f".{argv[0]}").read_text(), end="")
    else:
        shells = listed(SCRIPTS, "or")
        if len(argv) != 1:
            raise UserError(f"name one shell: {shells}")
        raise UserError(f"{argv[0]}: unknown shell; {did_you_mean(argv[0], SCRIPTS, f'use {shells}')}")


def suggestions(words: Sequence[str]) -> Suggestions | None:
    """Return the completions of the last word, or None if the shell must complete a file name."""
    # Command, and the words after it. bash passes --flag=value as three words.
    before, typed = [word for word in words[:-1] if word != "="], "".join(words[-1:]).removeprefix("=")
    path, *before = (before[2:] if before[:2] == ["uv", "run"] else before) or [""]
    command = Path(path).name
    if command == "mjlab-dist":
        if not before:
            return _start_with(SUMMARIES, typed)
        command, *before = before
    if command not in SUMMARIES:
        return None

    # Flags of the command and the task
    task = before[0] if before and before[0] in registry.task_names() else None
    flags = {spelling: flag for flag in _flags(command, task) for spelling in flag.spellings}

    # The value of a flag
    name, equals, value = typed.partition("=")
    if equals and name in flags:
        found = _values(flags[name], value, flags)
        return None if found is None else {f"{name}={word}": meaning for word, meaning in found.items()}
    position = max((i for i, word in enumerate(before) if word.startswith("--")), default=None)
    if not typed.startswith("--") and position is not None:
        flag = flags.get(before[position].replace("_", "-"))
        if flag is not None and len(before) - position <= _max_values(flag):
            return _values(flag, typed, flags)

    # A positional argument, or the name of a flag
    if not before and not typed.startswith("-") and command not in ("demo", "doctor", "list-tasks"):
        return _positional(command, typed)
    return _folded({spelling: _meaning(flag) for spelling, flag in flags.items()}, typed)


def _flags(command: str, task: str | None) -> list[Flag]:
    """Return the flags of a command, including the flags of the task if the command line names a task."""
    config = registry.task_config(task) if task is not None else general_config()
    run_flags = [flag for flag in flags_of(config) if flag.path != "task"]
    if command in (of_runs := {"play": PlayConfig, "evaluate": EvaluateConfig}):
        env_flags = [flag for flag in run_flags if flag.path.startswith("env.")]
        return [*flags_of(of_runs[command]()), *env_flags, *HELP_FLAGS]
    if (own := _own_config(command)) is not None:
        return [*flags_of(own), *HELP_FLAGS]
    if command == "train":
        from mjlab_dist.cli.train import HELP
    elif command == "check":
        from mjlab_dist.cli.check import HELP
    elif command == "verify":
        from mjlab_dist.cli.verify import HELP
    elif command == "scaling":
        from mjlab_dist.cli.scaling import HELP
    elif command == "size-buffers":
        from mjlab_dist.cli.size_buffers import HELP
    else:
        return [HELP_FLAGS[0]]
    return [*run_flags, *HELP.all_own, _HELP_ON_GROUP, HELP_FLAGS[1]]


def _own_config(command: str) -> object | None:
    """Return the config whose fields are the flags of a command; None for commands without such a config."""
    if command == "demo":
        from mjlab_dist.cli.demo import DemoConfig  # each command has imports of its own

        return DemoConfig()
    if command == "doctor":
        from mjlab_dist.cli.doctor import DoctorConfig

        return DoctorConfig()
    if command == "new-task":
        from mjlab_dist.cli.new_task import NewTaskConfig

        return NewTaskConfig()
    own = {"watch": WatchConfig(), "compare": CompareConfig(), "export": ExportConfig(), "pack": PackConfig()}
    return own.get(command)


def _positional(command: str, typed: str) -> Suggestions | None:
    if command == "completion":
        return _start_with(dict.fromkeys(SCRIPTS, ""), typed)
    if command == "new-task":
        return {}  # a name that the user chooses
    if command in ("watch", "compare", "pack"):
        return None if typed and not "latest".startswith(typed) else {"latest": "the newest run of all tasks"}
    return registry.task_summaries(typed)


def _max_values(flag: Flag) -> float:
    if "..." in flag.metavar:
        return float("inf")
    return max(len(form.split()) for form in flag.metavar.split("|"))


def _values(flag: Flag, typed: str, flags: Mapping[str, Flag]) -> Suggestions | None:
    """Return the values of a flag that start with the typed text, or None if the flag takes a path."""
    if flag.path in PATHS or flag.path.endswith(".file"):
        return None
    if flag is _HELP_ON_GROUP:
        return _folded({other.name: _meaning(other) for other in flags.values() if "." in other.name}, typed)
    forms = re.split(r"[|,]", flag.metavar.strip("{}"))
    words = [form for form in forms if form and not re.match(r"[A-Z]{3}", form) and (form != "None" or typed)]
    return _start_with({word: "default" if word in flag.default.split() else "" for word in words}, typed)


def _start_with(words: Mapping[str, str], typed: str) -> Suggestions:
    return {word: meaning for word, meaning in words.items() if word.startswith(typed)}


def _folded(names: Mapping[str, str], typed: str) -> Suggestions:
    """Return the names that start with the typed text.

    Cut each name after the first dot that follows the typed text: ``--env.a`` and ``--env.b`` become one entry,
    ``--env.``. If this entry is the only one, return the names that start with it instead, because a shell would append
    a space to the only suggestion.
    """
    found: Suggestions = {}
    num_flags: dict[str, int] = {}
    for name, meaning in _start_with(names, typed).items():
        head, dot, _ = name[len(typed) :].partition(".")
        group = f"{typed}{head}{dot}"
        num_flags[group] = num_flags.get(group, 0) + 1
        found[group] = f"{num_flags[group]} flags" if dot else meaning
    (first, *others) = found or [""]
    return _folded(names, first) if first.endswith(".") and not others else found


def _meaning(flag: Flag) -> str:
    default = f" (default: {flag.default})" if flag.default else ""
    return f"{shortened(flag).text}{default}"
