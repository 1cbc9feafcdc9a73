"""Temporary directories of launches, and the end of their child processes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conftest import Command

from mjlab_dist.machine.processes import TEMPORARY, remove_leftovers, remove_own, temporary_directory


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_launch_leaves_no_temporary_directory(directory: Path):
    with temporary_directory("launch") as path:
        assert Path(path).parent == directory
        (Path(path) / "torchrunx").mkdir()
    assert not list(directory.iterdir())


def test_only_directories_of_killed_launches_are_removed(directory: Path):
    left, foreign = (directory / name for name in (f"{TEMPORARY}1-x", "somebody-elses"))
    for path in (left, foreign):
        path.mkdir()
        (path / "file").touch()
    with temporary_directory("launch") as path:
        remove_leftovers()
        assert {p.name for p in directory.iterdir()} == {foreign.name, Path(path).name}


@pytest.mark.parametrize("is_removed", [False, True], ids=["while it is removed", "after it was removed"])
def test_a_directory_that_another_launch_removes_before_it_is_locked_is_made_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    make, first = tempfile.mkdtemp, []

    def make_and_lose(prefix: str) -> str:
        path = make(prefix=prefix)
        if not first:
            first.append(os.open(path, os.O_RDONLY))
            fcntl.flock(first[0], fcntl.LOCK_EX)
            if is_removed:
                Path(path).rmdir()
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    with temporary_directory("launch") as path:
        remove_leftovers()
        assert Path(path) in set(directory.iterdir())
    os.close(first[0])


def test_files_of_other_programs_are_ignored(directory: Path):
    victim = directory / "victim"
    victim.mkdir()
    (victim / "file").touch()
    for number in (1, os.getpid()):
        os.mkfifo(directory / f"{TEMPORARY}{number}-fifo")  # opening a FIFO would wait for a writer
        (directory / f"{TEMPORARY}{number}-link").symlink_to(victim)
        (directory / f"{TEMPORARY}{number}-file").touch()
    before = {path.name for path in directory.iterdir()}
    with temporary_directory("launch"):
        pass
    remove_own()
    assert {path.name for path in directory.iterdir()} == before
    assert (victim / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
def test_directories_of_other_users_are_ignored(directory: Path):
    foreign = directory / f"{TEMPORARY}1-x"
    foreign.mkdir()
    os.chown(foreign, 12345, 12345)
    remove_leftovers()
    assert foreign.exists()


def test_the_directory_of_a_process_that_ends_at_once_is_removed(directory: Path):
    with temporary_directory(f"{os.getpid()}-launch") as path:
        (Path(path) / "file").touch()
        other = directory / f"{TEMPORARY}{os.getpid()}0-x"
        other.mkdir()
        remove_own()
        assert list(directory.iterdir()) == [other]


PR_SET_CHILD_SUBREAPER = 36

ENDS_CHILDREN = """
import subprocess, sys
from mjlab_dist.machine import processes

processes.PATIENCE_S = 3600.0
sleeps = "import time; time.sleep(3600)"
starts = f"import subprocess; print(subprocess.Popen([{sys.executable!r}, '-c', {sleeps!r}]).pid, flush=True); {sleeps}"
child = subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
processes.end_children()
"""
"""Program that kills its child process, and the process that this child has started."""


def test_a_grandchild_that_nobody_removes_after_its_end_is_not_waited_for():
    # Like the first process of a container, this process becomes the parent of the grandchild, but does not wait for it
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        done = subprocess.run([sys.executable, "-c", ENDS_CHILDREN], stdout=subprocess.PIPE, timeout=60, check=True)
        killed = int(done.stdout)
        _, status = os.waitpid(killed, 0)
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


STARTS_MORE = """
import subprocess, sys

for _ in range(500):
    subprocess.Popen(["sleep", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print("started", flush=True)
"""
"""Program that starts one process after another."""

ENDS_WHILE_STARTING = """
import subprocess, sys
from mjlab_dist.machine.processes import end_children

child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
end_children()
"""


def test_processes_that_start_while_others_are_ended_do_not_stay(command: Command):
    done = command(sys.executable, "-c", ENDS_WHILE_STARTING, STARTS_MORE)
    assert done.code == 0, done.err
    # The fixture finds processes that are left
