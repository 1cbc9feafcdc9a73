"""End the child processes of a launcher and remove its temporary files, so that neither outlives the launcher."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

# Prefix of the names of temporary directories. The name of the launch follows: it starts with a process ID.
TEMPORARY = "mjlab-dist-launch-"

# Flags that open a directory, but refuse other files, such as a link that another user has put in its place
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

# Environment variable whose value is the name of a launch. The processes of the launch inherit this value. Other
# descendants of the launcher do not have it.
LAUNCH = "MJLAB_DIST_LAUNCH"

# Part of the command of multiprocessing's resource tracker. Each agent starts such a process.
TRACKER = "multiprocessing.resource_tracker"

# Maximum time to wait for killed processes to end, in seconds
PATIENCE_S = 5.0

# Operation of prctl(2) that sets the signal a process receives when the thread that started it ends
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, so that no process is left behind (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """Kill a child process and all processes that it started, and wait for it briefly."""
    import psutil  # slow to import, and needed at the end only

    with contextlib.suppress(psutil.NoSuchProcess):
        _signal(psutil.Process(process.pid).children(recursive=True), signal.SIGKILL)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)  # waiting longer does not help if the process hangs in a system call


@contextlib.contextmanager
def temporary_directory(launch: str) -> Iterator[str]:
    """Make a directory for the temporary files of all processes of a launch, and remove it afterwards.

    Directories of killed launches are removed first.
    """
    remove_leftovers()
    path, lock = _make_locked(f"{TEMPORARY}{launch}-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make_locked(prefix: str) -> tuple[str, int]:
    """Make a temporary directory and lock it; return its path and the descriptor that holds the lock.

    Before a directory is locked, another launch may take it for the directory of a killed launch and remove it. In this
    case, make another directory.
    """
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            lock = os.open(path, DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.stat(path)  # noqa: PTH116 (raises if the directory was removed)
            except OSError:
                os.close(lock)
                raise
            return path, lock


def remove_leftovers() -> None:
    """Remove the temporary directories of launches that have ended. A running launch locks its own directory."""
    for path in _own_directories(TEMPORARY):
        with contextlib.suppress(OSError):  # a launch uses it, or it was just removed
            directory = os.open(path, DIRECTORY)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(directory)


def remove_own() -> None:
    """Remove the temporary directories of this process's launches, before the process exits without cleanup."""
    for path in _own_directories(f"{TEMPORARY}{os.getpid()}-"):
        shutil.rmtree(path, ignore_errors=True)


def _own_directories(prefix: str) -> list[Path]:
    """Return the temporary directories that belong to this user.

    Other users can create files with the same prefix next to them. These files are left out: opening a FIFO, for
    example, would wait until another process writes to it.
    """
    with os.scandir(tempfile.gettempdir()) as files:
        return [Path(file.path) for file in files if file.name.startswith(prefix) and _is_own_directory(file)]


def _is_own_directory(file: os.DirEntry[str]) -> bool:
    try:
        return file.is_dir(follow_symlinks=False) and file.stat(follow_symlinks=False).st_uid == os.geteuid()
    except FileNotFoundError:
        return False  # it was just removed


def end_children(launch: str | None = None) -> None:
    """Kill processes that descend from this one, and wait until they are gone.

    multiprocessing's resource trackers end by themselves after the other processes, and remove their semaphores. They
    are killed only if they do not end in time.
    """
    import psutil  # slow to import, and needed at the end only

    # Suspend all before killing any: a process that runs on may start another one, which this search has not found. A
    # process that is in a system call and cannot be suspended, such as vfork, starts no other either.
    children: set[psutil.Process] = set()
    try:
        while found := {child for child in _descendants(launch) if child not in children}:
            children |= found
            _signal(found, signal.SIGSTOP)
            _wait_for(found, {psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP})
    finally:
        trackers = {child for child in children if TRACKER in _command(child)}
        _signal(children - trackers, signal.SIGKILL)
        _signal(trackers, signal.SIGCONT)
    _wait_for(children)
    _signal(trackers, signal.SIGKILL)
    _wait_for(trackers)


def _descendants(launch: str | None) -> list[psutil.Process]:
    import psutil

    children = psutil.Process().children(recursive=True)
    return [child for child in children if launch is None or _environ(child).get(LAUNCH) == launch]


def _signal(processes: Iterable[psutil.Process], signum: signal.Signals) -> None:
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has just ended, or belongs to another user
            process.send_signal(signum)


def _wait_for(processes: Collection[psutil.Process], statuses: Collection[str] = ()) -> None:
    """Wait until processes have one of the statuses or have ended, but at most :data:`PATIENCE_S`.

    A descendant whose parent has ended becomes a zombie until the first process of the machine removes it. In a
    container, this first process is often a program that never removes zombies. A zombie therefore counts as ended,
    unless it still has threads.
    """
    import psutil

    deadline = time.monotonic() + PATIENCE_S
    while not all(_is_in(statuses, process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.005)
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has not ended, or is not a child of this process
            process.wait(timeout=0)  # otherwise, a child would remain as a zombie


def _is_in(statuses: Collection[str], process: psutil.Process) -> bool:
    import psutil

    try:
        status = process.status()
        return status in statuses or (status == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def run_program(program: str, *args: str, timeout_s: float) -> str:
    """Run Python code in a process of its own and return what it prints.

    A thread is not enough: if the code waits for a name server that does not answer, only a process can be stopped.
    If the code takes too long, or raises an exception, raise an OSError; in the second case, with the exception's text.
    """
    command = [sys.executable, "-I", "-S", "-c", program, *args]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"timed out after {timeout_s:g} s") from None
    if done.returncode != 0:
        raised = done.stderr.strip().rpartition("\n")[2]
        raise OSError(re.sub(r"^[\w.]+: (\[Errno -?\d+\] )?", "", raised))
    return done.stdout.strip()


def _command(process: psutil.Process) -> str:
    import psutil

    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # the process has just ended


def _environ(process: psutil.Process) -> dict[str, str]:
    import psutil

    try:
        return process.environ()
    except psutil.Error:
        return {}  # the process has just ended
