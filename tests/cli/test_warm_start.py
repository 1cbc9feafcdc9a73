"""Commands that are forked from a process with imported libraries behave like commands that are started by exec."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import pytest
import start_message
from conftest import inherited
from start_message import AGENT
from warm_start import WarmStarts

STATE = """
import gc, json, os, random, signal, sys, tempfile, threading

def stream(file):
    return [file.name, file.mode, file.encoding, file.errors, file.newlines, file.line_buffering, file.write_through,
            type(file.buffer).__name__, file.fileno()]

def proc(name):
    return sorted(open(f"/proc/self/{name}", "rb").read().decode().split(chr(0)))

print(json.dumps({
    "argv": [sys.argv, sys.orig_argv],
    "path": sys.path,
    "flags": [str(sys.flags), sys.warnoptions],
    "environ": dict(os.environ),
    "proc": [proc("cmdline"), proc("environ"), open("/proc/self/comm").read()],
    "places": [os.getcwd(), tempfile.gettempdir()],
    "umask": os.umask(0),
    "ids": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(), os.getppid(), os.getuid(), os.nice(0)],
    "signals": {int(s): str(signal.getsignal(s)).partition(" at ")[0] for s in signal.valid_signals()},
    "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "files": sorted(os.listdir("/proc/self/fd"))[:-1],
    "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
    "are_originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "main": [__name__, __file__, repr(__spec__), __doc__, __package__, sys.modules["__main__"].__dict__ is globals()],
    "threads": [threading.active_count(), threading.current_thread() is threading.main_thread()],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "affinity": sorted(os.sched_getaffinity(0)),
}))
"""

ENDS = {
    "return": "print(1)",
    "code": "import sys; sys.exit(3)",
    "message": "import sys; sys.exit('text')",
    "error": "def fail():\n    raise ValueError('text')\nfail()",
    "at exit": "import atexit; atexit.register(print, 'later'); print('first')",
    "Ctrl-C": "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()",
    "at once": "import os; print('lost'); os._exit(4)",
    "syntax": "print(",
    "thread": "import threading; threading.Timer(0.1, print, ['thread']).start(); print('main')",
}


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmStarts]:
    starts = WarmStarts({**inherited(), "MJLAB_DIST_GONE": "1"})
    yield starts
    starts.close()


Ended = tuple[int, str, str]
"""Exit code, output and errors of a program."""


class Both:
    """Runs a program by exec and by fork."""

    def __init__(self, warm: WarmStarts, place: Path) -> None:
        self._warm = warm
        self._place = place

    def __call__(
        self, code: str, *args: str, env: dict[str, str] | None = None, **options: Any
    ) -> list[tuple[Any, ...]]:
        """Return two results, one by exec and one by fork: exit code, output and errors."""
        program = self._place / "train"
        program.write_text(
            f"#!{sys.executable}\nimport gc; gc.freeze()  # end as fast as the package's commands\n{code}"
        )
        program.chmod(0o755)
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True, "text": True}
        ended: list[Ended] = []
        for forks in (False, True):
            environ = {**inherited(), **(env or {})}
            before = self._warm.num_forks
            if forks:
                with self._warm.used():
                    process = subprocess.Popen([program, *args], env=environ, **(given | options))
            else:
                process = subprocess.Popen([program, *args], env=environ, **(given | options))
            out, err = process.communicate()
            assert self._warm.num_forks - before == forks
            ended.append((process.returncode, out, err))
        return ended


@pytest.fixture
def both(warm: WarmStarts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr(start_message, "BIN", tmp_path)
    return Both(warm, tmp_path)


@pytest.mark.slow
def test_a_forked_command_finds_the_same_process(both: Both, tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    env = {"MJLAB_DIST_NEW": "a=b", "COLUMNS": "77", "HOME": str(tmp_path), "PYTHONPATH": f"own:{tmp_path}"}
    before = os.umask(0o027)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        (_, cold, _), (_, forked, errors) = both(STATE, "--flag", "ä b", env=env, cwd=tmp_path / "cwd")
    finally:
        os.umask(before)
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    assert forked, errors
    assert json.loads(forked) == json.loads(cold)


@pytest.mark.slow
def test_a_forked_command_imports_the_package_of_its_own_path(both: Both, tmp_path: Path) -> None:
    copy = tmp_path / "copy" / "mjlab_dist"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("copied = True")
    (_, cold, _), (_, forked, errors) = both(
        "import mjlab_dist; print(mjlab_dist.copied)", env={"PYTHONPATH": str(copy.parent)}
    )
    assert forked == cold == "True\n", errors


@pytest.mark.slow
def test_a_forked_command_finds_the_tasks_of_its_own_path(both: Both, tmp_path: Path) -> None:
    package = tmp_path / "site" / "rover-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: rover\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[mjlab_dist.tasks]\nrover-drive = rover:config\n")
    (_, cold, _), (_, forked, errors) = both(
        "from mjlab_dist import registry; print('rover-drive' in registry.task_names())",
        env={"PYTHONPATH": str(package.parent)},
    )
    assert forked == cold == "True\n", errors


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_forked_command_ends_in_the_same_way(both: Both, how: str) -> None:
    cold, forked = both(ENDS[how])
    assert forked == cold


@pytest.mark.slow
def test_forked_commands_draw_different_numbers(both: Both) -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    numbers = [number for _ in range(2) for _, out, _ in both(code) for number in out.split()]
    assert len(set(numbers)) == 8


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MUJOCO_GL", "CUDA_VISIBLE_DEVICES", "LANG", "TZ"])
def test_variables_that_libraries_read_need_an_exec(warm: WarmStarts, name: str, tmp_path: Path) -> None:
    train = [str(start_message.BIN / "train")]
    assert not warm.forks(train, {**inherited(), name: "1"}, tmp_path)
    assert warm.forks(train, {**inherited(), "MJLAB_DIST_FAULT": "1"}, tmp_path)
    # The environment of an agent on another host has fewer variables
    agent, few = [sys.executable, *AGENT, "--fork"], {"PATH": "/usr/bin:/bin"}
    assert warm.forks(agent, few, tmp_path)
    assert warm.forks(agent, {**few, name: "1"}, tmp_path) == (name in start_message.SET_FOR_AGENTS)


@pytest.mark.parametrize("module", ["sitecustomize.py", "usercustomize.py"])
def test_modules_that_python_imports_before_a_command_need_an_exec(
    warm: WarmStarts, module: str, tmp_path: Path
) -> None:
    train, environ = [str(start_message.BIN / "train")], {**inherited(), "PYTHONPATH": "own:none"}
    (tmp_path / "own").mkdir()
    assert warm.forks(train, environ, tmp_path)
    (tmp_path / "own" / module).touch()
    assert not warm.forks(train, environ, tmp_path)


@pytest.mark.parametrize(("args", "are_hidden"), [(["tests/unit"], True), (["tests"], True), (["tests/gpu"], False)])
def test_gpus_are_hidden_from_all_tests_but_those_of_gpus(
    monkeypatch: pytest.MonkeyPatch, args: list[str], *, are_hidden: bool
) -> None:
    """CUDA does not work in a fork of a process that has initialized Warp on a machine with a GPU."""
    monkeypatch.chdir(conftest.GPU_TESTS.parents[1])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: iter([Path("/dev/nvidia0")]))
    config: Any = SimpleNamespace(args=args)
    conftest.pytest_configure(config)
    assert (os.environ.get("CUDA_VISIBLE_DEVICES") == "") == are_hidden
