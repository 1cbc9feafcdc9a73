"""The installed command play --viewer: command lines that it refuses, the page's address, and Ctrl-C."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Command

pytestmark = pytest.mark.slow

TASK = "cartpole-balance"

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Environment variables that name a display."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a run of the cartpole."""
    place = tmp_path_factory.mktemp("viewer")
    done = Command("trained", place).here(
        "train", TASK, "--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "1"
    )
    assert done.code == 0, done.err
    return place


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--viewer", "web", "--run", "nowhere"), "--run nowhere: "),
        (("--viewer", "web", "--video", "a.mp4"), "--video a.mp4: cannot be combined with --viewer web"),
        (("--viewer", "auto", "--frames", "a.png"), "--frames a.png: cannot be combined with --viewer auto"),
        (("--viewer", "auto", "--seconds", "3"), "--seconds 3: cannot be combined with --viewer auto"),
        (("--viewer", "native"), "--viewer native: there is no display"),
        (("--viewer", "native", "--port", "8080"), "--port 8080: there is no page"),
        (("--port", "8080"), "--port 8080: there is no page"),
        (("--host", "0.0.0.0"), "--host 0.0.0.0: there is no page"),
        (("--viewer", "web", "--port", "0"), "--port 0: must be at least 1 and at most 65535"),
        (("--viewer", "web", "--host", "192.0.2.1"), "--host 192.0.2.1: is not an address of this machine"),
        (("--viewer", "native", "--nan-dump", "x.pt"), "--nan-dump x.pt: --viewer native cannot show it"),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    flags: tuple[str, ...], message: str, command: Command, trained: Path
) -> None:
    command.cwd = trained
    done = command("play", TASK, *flags, env={name: "" for name in DISPLAYS if os.environ.get(name)})
    assert done.code == 2, done.err
    assert f"play: {message}" in done.err.splitlines()[-1], done.err


def test_runs_that_cannot_be_played_are_refused(command: Command, trained: Path) -> None:
    command.cwd = trained
    run = next((trained / "logs" / TASK).iterdir())
    checkpoint = next(run.glob("checkpoints/model_*.pt"))
    # A run and a checkpoint of another task
    for flag, value in (("--run", run), ("--checkpoint", checkpoint)):
        done = command.here("play", "cartpole-swingup", "--viewer", "web", flag, str(value))
        assert done.code == 2, done.err
        assert len(done.err.splitlines()) == 1, done.err
    # A run without a checkpoint
    empty = trained / "logs" / TASK / "2020-01-01_00-00-00"
    empty.mkdir()
    (empty / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    done = command.here("play", TASK, "--viewer", "web", "--run", str(empty))
    assert done.code == 2, done.err
    assert "has no checkpoint yet" in done.err
    # A port that another program uses
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = command.here("play", TASK, "--viewer", "web", "--port", port)
    assert done.code == 2, done.err
    assert done.err.startswith(f"play: --port {port}: is used by another program"), done.err


def test_it_serves_a_page_on_loopback_until_ctrl_c(
    command: Command, trained: Path, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    command.cwd = trained
    process = command.start("play", TASK, "--viewer", "web", "--num-envs", "2")
    _, port = _lines_until(process, r"http://127\.0\.0\.1:(\d+)/ ")
    listening = [c.laddr for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {(address.ip, address.port) for address in listening} == {("127.0.0.1", int(port))}
    connection = http.client.HTTPConnection("127.0.0.1", int(port))
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    done = command.finish(process)
    assert done.code == 0
    assert done.err == ""
    assert done.out == ""
    wait_for(lambda: not command.leftovers())


def test_other_addresses_need_the_token_that_is_printed(command: Command, trained: Path) -> None:
    command.cwd = trained
    process = command.start("play", TASK, "--viewer", "web", "--host", "0.0.0.0")
    lines, port, token = _lines_until(process, r":(\d+)/\?token=([\w-]+) ")
    assert any("--host 0.0.0.0: other machines" in line for line in lines)
    for path, status in (("/", 403), (f"/?token={token}", 303)):
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        connection.request("GET", path)
        assert connection.getresponse().status == status
    process.send_signal(signal.SIGINT)
    assert command.finish(process).code == 0


def test_a_window_opens_where_there_is_a_display(command: Command, trained: Path) -> None:
    if shutil.which("Xvfb") is None:
        pytest.skip("needs the program Xvfb (Debian: apt-get install xvfb libgl1-mesa-dri)")
    command.cwd = trained
    with subprocess.Popen(["Xvfb", "-displayfd", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            number = server.stdout.readline().decode().strip()
            display = {"DISPLAY": f":{number}", "WAYLAND_DISPLAY": ""}
            process = command.start("play", TASK, "--viewer", "auto", env=display)
            _lines_until(process, r"^Viewer: space pauses")
            # Loaded after OpenGL, Triton would crash the process
            assert find_spec("triton") is None or "libtriton" in Path(f"/proc/{process.pid}/maps").read_text()
            process.send_signal(signal.SIGINT)
            done = command.finish(process)
            assert (done.code, done.err) == (0, "")
        finally:
            server.kill()


def _lines_until(process: subprocess.Popen[str], pattern: str) -> tuple[Any, ...]:
    """Read lines until one contains a match of the pattern. Return the lines, and the groups of the match."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(pattern, line):
            return (lines, *found.groups())
    raise AssertionError(f"{lines} {process.stderr.read() if process.stderr else ''}")
