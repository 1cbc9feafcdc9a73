"""Programs accept every command line in the README and the docs, and the Python blocks in these pages run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest
from conftest import BIN, Command

from mjlab_dist.runs.pack_file import CHECKPOINT, read_manifest, read_part
from mjlab_dist.runs.run_dir import CONFIG_FILE, PRETRAINED, checkpoint_path, find_run

ROOT = Path(__file__).parents[2]

PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "tasks").glob("*/*/README.md")),
)

OWN_TASKS = {"my-ant", "my-robot", "go1-walk"}
"""Tasks that a page asks the reader to create with new-task. The tests replace their names with `template`, a task
with the config that new-task creates."""

PROGRAMS = {"train", "play", "list-tasks", "mjlab-dist"}

ANT = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "ant.xml"

LANGUAGES = {"", "sh", "bash", "python", "text", "toml", "bibtex"}
"""Languages of code blocks. Python that cannot run here, such as another project's code, must be marked as text."""

FILE = re.compile(r"# (\S+\.py)\n")
"""Matches the start of a Python block that belongs to a file, not to the page's program."""

RUN = "2026-01-31_12-00-00"
"""Name of the run directory in the docs."""


START = re.compile(r"((?:[A-Z_]+=\S+ )*)(?:uv run (?:--(?:extra|group|with) \S+ )*|torchrun )(.*)")
"""Matches a command line: variables, a program that starts another, and the other program with its arguments."""


@dataclass(frozen=True)
class Line:
    """A command line in a page."""

    page: str
    environ: tuple[str, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def documented() -> Iterator[Line]:
    """Yield the command lines in all shell blocks."""
    for page in PAGES:
        for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.removeprefix("$ ").partition("  #")[0].split(" && "):
                    if match := START.match(command):
                        words = shlex.split(match[2], comments=True)
                        yield Line(page.relative_to(ROOT).as_posix(), tuple(match[1].split()), tuple(words))


def of_program(*names: str) -> list[Line]:
    """Return the command lines of some programs, without duplicates."""
    found: dict[tuple[str, ...], Line] = {}
    for line in documented():
        words = line.words[line.words.index("train") :] if "--no-python" in line.words else line.words
        if words[0] in names:
            found.setdefault(words, Line(line.page, line.environ, words))
    return list(found.values())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with short runs of two tasks and a pack of the last of them. All are named as in the docs."""
    command = Command(f"{os.getpid()}-documented", tmp_path_factory.mktemp("documented"))
    flags = ("--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "1", "--agent.num-steps-per-env", "4")
    for task in ("quadruped-velocity-flat", "cartpole-balance"):
        done = command.here("train", task, *flags)
        assert done.code == 0, done.err
        (run,) = (command.cwd / "logs" / task).iterdir()
        run.rename(run.with_name(RUN))
    done = command.here("mjlab-dist", "pack", str(run.with_name(RUN)), "--no-onnx", "--output", "cartpole.zip")
    assert done.code == 0, done.err
    return command.cwd


def stand_in_values(words: tuple[str, ...]) -> list[str]:
    return ["template" if word in OWN_TASKS else word for word in words]


def test_the_pages_have_commands() -> None:
    lines = list(documented())
    assert len(lines) > 60
    assert {line.words[0] for line in lines} >= {*PROGRAMS, "python", "pytest"}


def test_pages_name_the_group_that_tests_need() -> None:
    assert [page.name for page in PAGES if "uv run pytest" in page.read_text()] == ["CONTRIBUTING.md"]
    assert "uv sync --group dev" in (ROOT / "CONTRIBUTING.md").read_text()


def test_blocks_are_in_known_languages() -> None:
    """Blocks in other languages would not be tested, neither as command lines nor as Python."""
    for page in PAGES:
        fences = re.findall(r"^\s*```(.*)$", page.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= LANGUAGES, page
        assert set(fences[1::2]) <= {""}, page


@pytest.mark.parametrize("line", of_program("train"), ids=str)
def test_a_documented_training_is_a_valid_config(
    command: Command, trained: Path, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.cwd = trained
    for pair in line.environ:
        monkeypatch.setenv(*pair.split("=", 1))
    done = command.here(*stand_in_values(line.words), "--print-config")
    assert done.code == 0, done.err
    assert done.out.startswith("usage: " if asks_for_help(line.words) else "task: ")


def asks_for_help(words: Sequence[str]) -> bool:
    return any(word.startswith("--help") for word in words)


@pytest.fixture(scope="module")
def shown() -> dict[tuple[str, ...], str]:
    """Dict from a command to its help text, for the commands whose help earlier tests have read."""
    return {}


@pytest.fixture
def help_of(command: Command, shown: dict[tuple[str, ...], str]) -> Callable[..., str]:
    """Return a function that returns the help text of a command. Each command runs only once."""

    def show(*words: str) -> str:
        if words not in shown:
            done = command.here(*words)
            assert done.code == 0, done.err
            shown[words] = done.out
        return shown[words]

    return show


@pytest.mark.parametrize("line", of_program("play", "list-tasks", "mjlab-dist"), ids=str)
def test_a_documented_command_has_the_flags(help_of: Callable[..., str], line: Line) -> None:
    program, *words = stand_in_values(line.words)
    subcommand = [words.pop(0)] if program == "mjlab-dist" else []
    task = [word for word in words[:1] if not word.startswith("-")] if program == "play" else []
    pages = help_of(program, *subcommand, *task, "--help")
    if any(word.startswith("--env.") for word in words):
        pages += help_of("train", *task, "--help-all")
    known = set(re.findall(r"--[a-z0-9][\w.-]*", pages))
    assert {word for word in words if word.startswith("--")} <= known


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """Return the number of the first line, counted from 0, and the text of each Python block of a page."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def create_ant(command: Command) -> None:
    """Create and install the task my-ant as its page describes. Make its project the working directory."""
    new = command("mjlab-dist", "new-task", "my-ant", "--mjcf", str(ANT), "--dir", str(command.cwd))
    assert new.code == 0, new.err
    command.cwd /= "my_ant"
    info = command.cwd / "my_ant-0.1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: my-ant\nVersion: 0.1.0\n")
    info.joinpath("entry_points.txt").write_text("[mjlab_dist.tasks]\nmy-ant = my_ant.config:my_ant\n")


def export_demo(command: Command) -> None:
    """Make a run of the quadruped from the policy that the package contains, and export it."""
    task = "quadruped-velocity-flat"
    run_dir, pack = command.cwd / "logs" / task / "run", find_run("logs", task, PRETRAINED)
    checkpoint = checkpoint_path(run_dir, read_manifest(pack)["iteration"])
    checkpoint.parent.mkdir(parents=True)
    (run_dir / CONFIG_FILE).write_bytes(read_part(pack, CONFIG_FILE))
    checkpoint.write_bytes(read_part(pack, CHECKPOINT))
    done = command("mjlab-dist", "export", task, "--output", "quadruped", "--num-checked", "1")
    assert done.code == 0, done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(not FILE.match(code) for _, code in python_blocks(page))],
    ids=lambda one: one.stem,
)
def test_the_python_of_a_page_runs(command: Command, page: Path) -> None:
    """Run the blocks of a page in order in one program, as in a notebook.

    A block that starts with a comment with the name of a file is not part of the program. It is appended to this file
    before the program starts. Every training runs for one iteration.
    """
    text = page.read_text()
    if "from my_ant import" in text:
        create_ant(command)
    if "quadruped/policy.onnx" in text:
        export_demo(command)
    # Write the files, and a program whose line numbers equal those of the page
    lines = [""] * len(text.splitlines())
    for first, block in python_blocks(page):
        if name := FILE.match(block):
            with (command.cwd / name[1]).open("a") as file:
                file.write(f"\n\n{block}")
        else:
            lines[first : first + block.count("\n")] = block.splitlines()
    program = command.cwd / f"{page.stem}.py"
    code = re.sub(r"\bmax_iterations=\d+", "max_iterations=1", "\n".join(lines)[1:])
    program.write_text(f"#!{BIN / 'python'}\n{code}")
    program.chmod(0o700)
    done = command(str(program), env={"PYTHONPATH": str(ROOT / "tests")}, timeout_s=600)
    assert done.code == 0, done.err


def flags_of_scripts() -> dict[str, set[str]]:
    """Return a dict from each script of this repository in the docs to its documented flags."""
    found: dict[str, set[str]] = {}
    for line in of_program("python", "scripts"):
        script = next(word for word in line.words if word.endswith(".py"))
        found.setdefault(script, set()).update(word for word in line.words if word.startswith("--"))
    return {script: flags for script, flags in found.items() if (ROOT / script).is_file()}


@pytest.mark.parametrize("script", flags_of_scripts())
def test_a_documented_script_has_the_flags(command: Command, script: str) -> None:
    page = command("python", str(ROOT / script), "--help").out
    for flag in flags_of_scripts()[script]:
        assert flag in page or (flag.startswith("--env.") and "--env." in page)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("line", of_program("train"), ids=str)
def test_documented_training_commands_run(command: Command, trained: Path, line: Line) -> None:
    # Each line has its own copy of the run: after one line has trained up to an iteration, another line cannot do so
    shutil.copytree(trained, command.cwd, symlinks=True, dirs_exist_ok=True)
    words = stand_in_values(line.words)
    if "--hosts" in words:
        pytest.skip("needs other machines")
    if asks_for_help(words):
        pytest.skip("trains nothing")
    small = ["--num-envs", "8", "--max-iterations", "2"]
    device = ["--gpu-ids", "None"] if "--cpu-ranks" not in words else []
    done = command(*without(words, "--max-iterations", "--num-envs", "--gpu-ids"), *small, *device)
    assert done.code == 0, done.err


def without(words: list[str], *flags: str) -> list[str]:
    """Return arguments without some flags and their values."""
    kept: list[str] = []
    skips = False
    for word in words:
        skips = word in flags if word.startswith("--") else skips
        if not skips:
            kept.append(word)
    return kept
