"""Random command lines and config files: each is accepted, or refused without a traceback, by tyro or in one line.

Each command runs in this process until it would build envs, start ranks or write files.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from conftest import Command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mjlab_dist.cli import main
from mjlab_dist.cli.flags import fields_of
from mjlab_dist.config import PlayConfig, TrainConfig, registry
from mjlab_dist.config.serialization import paths, to_plain
from mjlab_dist.errors import Exit
from mjlab_dist.launch.plan import check_config, plan_run
from mjlab_dist.runs.provenance import write_origin
from mjlab_dist.runs.run_dir import CHECKPOINTS_DIR, CONFIG_FILE, checkpoint_path, next_run_dir

TASK = "cartpole-balance"

DEFAULT = registry.task_config(TASK)

TYROS_ADVICE = "For full helptext"
"""Text in all errors that tyro prints."""

MAX_REFUSAL_S = 5.0
"""Maximum seconds to refuse a command line."""

OWN_FLAGS = (
    *("--config", "--print-config", "--dry-run", "--verbose", "--json", "--steps", "--run", "--help", "--help-all"),
    *("--mjcf", "--robot", "--robots-dir", "--floating", "--goal", "--dir"),
)
"""Flags that are not fields of a config."""

NOT_TRIED = ("--hosts",)
"""Flags that the tests do not draw, because commands check their values over the network."""

FLAGS = sorted(
    {*OWN_FLAGS, *(f"--{name.replace('_', '-')}" for config in (DEFAULT, PlayConfig()) for name in fields_of(config))}
    - {*NOT_TRIED}
)

WORDS = r"""
    None auto all latest best True nan inf -inf -1 0 1 1.5 1e3 1e400 -1e-400 1_000 __ 0x10 0,1 , 1,,2 2**64 600s
    [ *a &a !!python/object:os.system @file %s {} \ ' " - -- --- --= -x = json:loads os:path a:b a: : a/b .. /
    /dev/null /proc/self/mem logs config.yaml ü 名前 🦾
"""

LINES = ("", " ", "a\nb", "? x", "a: b: c", "{a: 1}", "[[0, 1]]", "1 2", "\x1b[", "\u202e", "\udcff")

odd_values = st.sampled_from([*WORDS.split(), *LINES, "9" * 30, "9" * 5000, "x" * 300])

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)

values = st.one_of(odd_values, texts, st.integers().map(str), st.floats().map(str))


@st.composite
def flags(draw: st.DrawFn) -> str:
    """Draw a flag, which is sometimes misspelled."""
    flag = draw(st.sampled_from(FLAGS))
    if draw(st.integers(0, 3)):
        return flag
    at = draw(st.integers(0, len(flag)))
    return draw(
        st.sampled_from([flag[:at], flag[:at] + "x" + flag[at:], flag.upper(), flag.replace("-", "_"), "--" + flag])
    )


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw arguments: often a task, then flags, each with any number and form of values."""
    task = draw(st.sampled_from([TASK, TASK, TASK, TASK, "cartpole", "", None]) | texts)
    argv = [] if task is None else [task]
    for _ in range(draw(st.integers(0, 4))):
        flag, given_ = draw(flags()), draw(st.lists(values, max_size=3))
        argv += [f"{flag}={given_[0]}", *given_[1:]] if given_ and draw(st.booleans()) else [flag, *given_]
        argv += [flag] if draw(st.integers(0, 9)) == 0 else []
    return argv


odd_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | odd_values | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.integers(), inner, max_size=3),
    max_leaves=4,
)


def changed(plain: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of plain data in which one entry has a new value, or is missing if the new value is Ellipsis."""
    inner = result = copy.deepcopy(plain)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    return result


@st.composite
def config_files(draw: st.DrawFn) -> bytes:
    """Draw the text of a config file: a run's config with changed, missing or unknown entries, or arbitrary text."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=20) | texts.map(lambda text: text.encode(errors="surrogateescape")))
    plain = to_plain(DEFAULT)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([name for name, _ in paths(to_plain(DEFAULT)) if name != "hosts"])).split(".")
        path[-1] = draw(st.sampled_from([path[-1]] * 9 + ["unknown"]))
        value = draw(st.just(...) | odd_data)
        with contextlib.suppress(KeyError, TypeError):  # the parent was removed, or never existed
            plain = changed(plain, path, value)
    return yaml.safe_dump(plain, sort_keys=False).encode()


class Accepted(BaseException):
    """Raised when a command would build envs, start ranks or write files."""


def accept(*_: Any, **__: Any) -> NoReturn:
    raise Accepted


def plan(config: TrainConfig, *_: Any, **__: Any) -> NoReturn:
    """Run the checks that training makes before it starts."""
    check_config(config)
    plan_run(config, os.environ, [], next_run_dir)
    raise Accepted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a directory with a run as the working directory, and let all commands end before they start anything."""
    import mjlab_dist.authoring.buffer_sizes
    import mjlab_dist.authoring.check.run_checks
    import mjlab_dist.authoring.new_task.robot_files
    import mjlab_dist.cli.check
    import mjlab_dist.cli.export
    import mjlab_dist.cli.play
    import mjlab_dist.launch.dry_run
    import mjlab_dist.launch.signals
    import mjlab_dist.launch.train
    import mjlab_dist.launch.verify.verification
    import mjlab_dist.machine.doctor
    import mjlab_dist.policies
    import mjlab_dist.policies.evaluate
    import mjlab_dist.policies.export
    import mjlab_dist.policies.view.show

    folder = tmp_path_factory.mktemp("fuzz")
    run = folder / "logs" / TASK / "2026-01-01_00-00-00"
    (run / CHECKPOINTS_DIR).mkdir(parents=True)
    write_origin(run, DEFAULT, ["train"], ["cpu"])
    checkpoint_path(run, 3).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        # Keep the signal handlers of the test process
        patch.setattr(mjlab_dist.launch.signals, "stopping_on_signal", lambda *_: contextlib.nullcontext())
        patch.setattr(mjlab_dist.launch.signals, "handled_signals", set)
        patch.setattr(mjlab_dist.launch.train, "train", plan)
        patch.setattr(mjlab_dist.launch.dry_run, "dry_run", plan)
        patch.setattr(mjlab_dist.cli.check, "import_learner", lambda: None)
        patch.setattr(mjlab_dist.cli.play, "import_learner", lambda: None)
        patch.setattr(mjlab_dist.cli.export, "import_learner", lambda: None)
        patch.setattr(mjlab_dist.policies, "play", accept)
        patch.setattr(mjlab_dist.policies, "replay", accept)
        patch.setattr(mjlab_dist.policies.view.show, "view", accept)
        patch.setattr(mjlab_dist.policies.view.show, "watch", accept)
        patch.setattr(mjlab_dist.policies.evaluate, "_play", accept)
        patch.setattr(mjlab_dist.policies.export, "export", accept)
        patch.setattr(mjlab_dist.authoring.check.run_checks, "_checks", accept)
        patch.setattr(mjlab_dist.launch.verify.verification, "create_run_dir", accept)
        patch.setattr(mjlab_dist.authoring.buffer_sizes, "measure", accept)
        patch.setattr(mjlab_dist.machine.doctor, "examine", accept)
        patch.setattr(mjlab_dist.authoring.new_task, "create", accept)
        patch.setattr(mjlab_dist.authoring.new_task.robot_files, "find_robot", accept)
        yield folder


def run(command: str, argv: Sequence[str]) -> float:
    """Run a command, and assert that it is accepted, or refused as described. Return the duration in seconds."""
    start, code, err = time.monotonic(), Exit.DONE, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            main._run(command, argv, command)
        except Accepted:
            pass
        except SystemExit as exit_:
            code = exit_.code
    took_s = time.monotonic() - start
    assert code in (Exit.DONE, Exit.USAGE, Exit.PREFLIGHT), f"{command} {argv}: exit {code}"
    if code and TYROS_ADVICE not in err.getvalue():
        lines = err.getvalue().removesuffix("\n").split("\n")
        assert len(lines) == 1, f"{command} {argv}: {lines}"
        assert lines[0].startswith(f"{command}: ")
        assert lines[0].isprintable(), f"{command} {argv}: {lines}"
    return took_s


def fuzz(num_examples: int, folder: Path, assert_within: Callable[[float, float], None]) -> None:
    slowest_s = 0.0

    @settings(max_examples=num_examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(
        command=st.sampled_from([*main.SUMMARIES, "train", "train", "train", "play"]),
        argv=command_lines(),
        file=config_files(),
        with_file=st.integers(0, 2),
    )
    def one(command: str, argv: list[str], file: bytes, with_file: int) -> None:
        nonlocal slowest_s
        if with_file == 0:
            (folder / CONFIG_FILE).write_bytes(file)
            argv = ["--config", CONFIG_FILE, *argv[1:]]
        slowest_s = max(slowest_s, run(command, argv))

    one()
    assert_within(slowest_s, MAX_REFUSAL_S)


@pytest.mark.slow
def test_random_command_lines_are_accepted_or_refused(
    folder: Path, assert_within: Callable[[float, float], None]
) -> None:
    fuzz(200, folder, assert_within)


@pytest.mark.long
def test_many_random_command_lines_are_accepted_or_refused(
    folder: Path, assert_within: Callable[[float, float], None]
) -> None:
    fuzz(2000, folder, assert_within)


@pytest.mark.parametrize(
    "argv",
    [
        ["train", TASK, "--run-name", "a\nb"],
        ["train", TASK, "--resume", "not utf-8 \udcff\n"],
        ["train", "--config", "no\nsuch.yaml"],
        ["train", TASK, "--env.rewards.smooth.weight", "nan"],
        ["play", TASK, "--num-envs", "-1"],
        ["play", "名前", "--video", "\x1b[31m.mp4"],
        ["mjlab-dist", "check", TASK, "--seed", "-1"],
        ["mjlab-dist", "no\nsuch"],
    ],
)
def test_odd_command_lines_are_refused_by_the_installed_commands(
    command: Command, argv: list[str], assert_within: Callable[[float, float], None]
) -> None:
    done = command(*argv)
    assert done.code == Exit.USAGE
    (line,) = done.err.splitlines()
    assert line.startswith(f"{' '.join(argv[:1])}")
    assert line.isprintable()
    assert_within(done.took_s, MAX_REFUSAL_S)
