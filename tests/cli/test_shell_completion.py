"""Completion in real shells in a terminal. Tests install the script as its help describes, and then type keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mjlab_dist.cli.completion import SCRIPTS

BIN = Path(sys.executable).parent

TIMEOUT_S = 60.0
"""Seconds that a test waits for a text before it fails. On an idle machine, each shell takes less than a second."""

ESCAPES = re.compile(r"\x1b\[[0-9;?>=]*[a-zA-Z]|\x1b[=>()][0-9A-B]?|\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\r")

SETTINGS = {
    "bash": "bind 'set enable-bracketed-paste off'",
    "zsh": "autoload -Uz compinit; compinit -u; unsetopt zle_bracketed_paste 2>/dev/null; bindkey -e",
    "fish": "set -g fish_autosuggestion_enabled 0; set -g fish_greeting",
}
"""Settings that make the screen readable for the test."""

FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}


class Terminal:
    """An interactive shell. Tests can type, complete and read its command line."""

    def __init__(self, shell: str, home: Path, cwd: Path) -> None:
        environ = {"HOME": str(home), "PATH": f"{home / 'bin'}:{BIN}:/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"}
        self.shell = shell
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.chdir(cwd)
            os.execvpe(shell, [shell, "-i"], environ)
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 250, 0, 0))
        self.enter("printf '<%s>\\n' rea''dy")
        self.wait_for("<ready>")

    def enter(self, line: str) -> None:
        os.write(self.screen, f"{line}\r".encode())

    def wait_for(self, pattern: str) -> str:
        """Wait until shown text matches a pattern, or fail. Return the text without the terminal's escape sequences."""
        shown, deadline = "", time.monotonic() + TIMEOUT_S
        while not re.search(pattern, shown := ESCAPES.sub("", shown)):
            if not select.select([self.screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
                pytest.fail(f"{pattern!r} is not shown in {shown!r}")
            shown += os.read(self.screen, 1 << 16).decode(errors="replace")
        return shown

    def completed(self, typed: str) -> str:
        """Type a line, press Tab, and return the completed line, which the shell prints with printf."""
        os.write(self.screen, f"{typed}\t".encode())
        time.sleep(0.1)  # fish treats keys that arrive together as pasted text
        # zsh removes a space or slash that it has added, unless a letter follows.
        os.write(self.screen, b"x\x01printf '<%s>\\n' '\x05'\r")
        shown = self.wait_for(r"\n<(?!%s)[^>]*x>\n")
        return shown.rpartition("<")[2].partition("x>")[0]

    def suggested(self, typed: str, until: str) -> str:
        """Type a line, press Tab (in bash, twice to list choices), and return the shown text. Then delete the line."""
        tabs = "\t\t" if self.shell == "bash" else "\t"
        os.write(self.screen, f"{typed}{tabs}".encode())
        shown = self.wait_for(until)
        os.write(self.screen, b"\x15")
        self.enter("printf '<%s>\\n' do''ne")
        return shown + self.wait_for("<done>")

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.screen)


@pytest.fixture(params=list(SCRIPTS))
def shell(request: pytest.FixtureRequest) -> str:
    if not shutil.which(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


@pytest.fixture
def home(tmp_path: Path, shell: str) -> Path:
    """A home directory in which completion is installed. It contains a directory whose name can be completed."""
    settings = tmp_path / FILES[shell]
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"{SETTINGS[shell]}\n")
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}"}
    subprocess.run(SCRIPTS[shell], shell=True, env=environ, check=True)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "my config.yaml").touch()
    return tmp_path


@pytest.fixture
def terminal(shell: str, home: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(cwd: Path = home) -> Terminal:
        opened.append(Terminal(shell, home, cwd))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.slow
def test_lines_are_completed(terminal: Callable[..., Terminal]) -> None:
    shell = terminal()
    for typed, line in (
        ("train cartpole-b", "train cartpole-balance "),
        ("mjlab-dist verify cartpole-s", "mjlab-dist verify cartpole-swingup "),
        ("mjlab-dist new-t", "mjlab-dist new-task "),
        (f"{BIN}/play cartpole-b", f"{BIN}/play cartpole-balance "),
        ("train cartpole-balance --num", "train cartpole-balance --num-envs "),
        ("train cartpole-balance --agent.lea", "train cartpole-balance --agent.learning-rate "),
        ("train cartpole-balance --env.rewards.smooth.w", "train cartpole-balance --env.rewards.smooth.weight "),
        ("train cartpole-balance --logger w", "train cartpole-balance --logger wandb "),
        ("train cartpole-balance --logger=w", "train cartpole-balance --logger=wandb "),
        ("train quadruped-velocity-rough --env.ter", "train quadruped-velocity-rough --env.terminations."),
        ("train cartpole-balance --num-envs 4", "train cartpole-balance --num-envs 4"),
        ("train cartpole-balance --config lo", "train cartpole-balance --config logs/"),
        ("train cartpole-balance --config=~/lo", "train cartpole-balance --config=~/logs/"),
        ("play cartpole-balance --video logs/my", r"play cartpole-balance --video logs/my\ config.yaml "),
    ):
        assert shell.completed(typed) == line


@pytest.mark.slow
def test_groups_choices_and_tasks_are_shown(terminal: Callable[..., Terminal]) -> None:
    shell = terminal()
    shown = shell.suggested("train quadruped-velocity-rough --env.rewards.", r"vertical-velocity\.")
    assert "feet-air-time." in shown
    assert "feet-air-time.weight" not in shown
    shown = shell.suggested("train cartpole-balance --logger ", "wandb")
    assert "tensorboard" in shown
    shown = shell.suggested("train cartpole-", "cartpole-swingup")
    assert "cartpole-balance" in shown


@pytest.mark.slow
def test_a_command_of_another_package_is_not_started(terminal: Callable[..., Terminal], home: Path) -> None:
    (home / "bin").mkdir()
    for name in ("train", "play"):
        (home / "bin" / name).write_text(f"#!/bin/sh\ntouch {home}/started\n")
        (home / "bin" / name).chmod(0o755)
    shell = terminal()
    assert shell.completed("train lo") == "train logs/"
    assert shell.completed("play cartpole-b") == "play cartpole-b"
    assert not (home / "started").exists()


@pytest.mark.slow
def test_commands_behind_uv_run(terminal: Callable[..., Terminal], home: Path) -> None:
    (home / "project" / "docs").mkdir(parents=True)
    (home / "project" / ".venv").symlink_to(BIN.parent)
    shell = terminal(home / "project" / "docs")
    assert shell.completed("uv run train cartpole-b") == "uv run train cartpole-balance "
    assert shell.completed("uv run play cartpole-balance --vid") == "uv run play cartpole-balance --video "
    outside = terminal()
    assert outside.completed("uv run train cartpole-b") == "uv run train cartpole-b"
    assert outside.completed("uv run python lo") == "uv run python logs/"
