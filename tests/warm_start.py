"""Start commands of tests by forking a process that has imported their libraries, instead of importing them again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from warm_process import AGENT, SIZE, Start, send

from mjlab_dist.patching import patched

BIN = Path(sys.executable).parent

SERVER = Path(__file__).parent / "warm_process.py"

LIBRARIES = (
    *("warp", "torchrunx.worker", "torchrunx.agent", "tyro", "rich.progress", "yaml", "dacite", "psutil"),
    "mujoco_warp",
)
"""Modules that commands import, in addition to those of a learner."""

SIMULATES = (
    *("train", "torchrun", "evaluate", "size-buffers", "new-task", "verify", "scaling"),
    *("play", "check", "demo", "watch"),
)
"""Commands that simulate."""

EXPORTS = ("export", "pack")
"""Commands that write ONNX files."""

IMPORTS_NOTHING = {"--help", "-h", "--help-all", "--print-config"}
"""Flags of commands that import no libraries."""

SAFE = (
    *("MJLAB_DIST_", "PYTEST_", "COLUMNS", "HOME", "PATH", "XDG_CACHE_HOME", "SSH_AUTH_SOCK", "TMPDIR"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_", "SLURM_"),
    *("WANDB_", "NETRC", "HF_", "TRACKIO_", "FAKE_SLURM", "CUDA_DEVICE_ORDER", "IMAGEIO_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "TORCHRUNX_LOG_DIR"),
)
"""Starts of the names of variables that no library reads when it is imported."""

SET_FOR_AGENTS = {
    *("PYOPENGL_PLATFORM", "TORCHINDUCTOR_CACHE_DIR"),  # by the imports of a test
    *("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"),  # ranks set their number of threads
}
"""Variables of the test process that agents inherit, and that have no effect on the libraries of ranks."""

STARTS_PYTHON = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports before a program, if a folder of PYTHONPATH has them."""

PR_SET_CHILD_SUBREAPER = 36


class WarmStarts:
    """Processes to fork commands from. Each is started when it is first needed.

    Args:
        environ: Their environment. A command with other variables that libraries may read is started by exec.

    Attributes:
        num_forks: Number of commands that were forked.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._servers: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], socket.socket]] = {}
        self._forking = threading.Lock()
        self._lock = threading.Lock()
        self._users = 0
        self._patch = contextlib.ExitStack()
        self.num_forks = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have subprocess.Popen fork what can be forked, in all threads."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                original = subprocess._fork_exec  # pyright: ignore[reportAttributeAccessIssue]
                self._patch.enter_context(
                    patched(subprocess, "_fork_exec", lambda *args: self._fork(*args) or original(*args))
                )
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._patch.close()

    def close(self) -> None:
        """End the processes."""
        for process, connection in self._servers.values():
            connection.close()
            process.wait()

    def _fork(self, *args: Any) -> int | None:
        """Take the arguments of _posixsubprocess.fork_exec; return None if the command needs an exec."""
        argv, _, _, passed, cwd, variables, stdin, _, _, stdout, _, stderr, _, error = args[:14]
        new_session, group, gid, groups, uid, umask, preexec = args[15:22]
        if (not new_session, group, gid, groups, uid, preexec) != (False, -1, None, None, None, None):
            return None
        if variables is None or tuple(passed) != (error,):
            return None
        argv = [os.fsdecode(each) for each in argv]
        environ = dict(os.fsdecode(each).split("=", 1) for each in variables)
        start = Start.here(argv[_is_agent(argv) :], environ, os.fspath(cwd) if cwd else None)
        start.umask = start.umask if umask < 0 else umask
        if not self.forks(argv, environ, Path(start.cwd)):
            return None
        descriptors = [each if each >= 0 else own for own, each in enumerate((stdin, stdout, stderr))]
        prctl = ctypes.CDLL(None).prctl
        with self._forking:
            server = self._server(_libraries(_name(argv)))
            prctl(PR_SET_CHILD_SUBREAPER, 1)  # the command becomes a child of this process
            try:
                send(server, start, descriptors)
                answer = server.recv(SIZE.size)
            except OSError:
                return None
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0)
        pid = SIZE.unpack(answer)[0] if answer else 0
        self.num_forks += pid > 0
        return pid or None

    def forks(self, argv: Sequence[str], environ: Mapping[str, str], cwd: Path) -> bool:
        """Return whether a command in a directory is forked: one of this package, an agent, or a script of a test.

        A script is forked if it is executed itself, and started by exec if it is an argument of Python.
        """
        changed = {name for name, value in environ.items() if self._environ.get(name) != value}
        if _is_agent(argv):
            changed -= SET_FOR_AGENTS
        else:
            is_command = Path(argv[0]).parent == BIN and _name(argv) in SIMULATES + EXPORTS
            if not (is_command or argv[0].endswith(".py")) or IMPORTS_NOTHING & set(argv):
                return False
            changed |= self._environ.keys() - environ.keys()  # agents of other hosts have few variables
        if "PYTHONPATH" in changed:
            folders = [cwd / each for each in environ.get("PYTHONPATH", "").split(os.pathsep)]
            if any((folder / name).is_file() for folder in folders for name in STARTS_PYTHON):
                return False
        return all(name.startswith(SAFE) for name in changed - {"PYTHONPATH"})

    def _server(self, libraries: tuple[str, ...]) -> socket.socket:
        if libraries not in self._servers:
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, str(SERVER), str(theirs.fileno()), *libraries],
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._servers[libraries] = process, ours
        return self._servers[libraries][1]


def _is_agent(argv: Sequence[str]) -> bool:
    """Return whether a command is Python with an agent."""
    return argv[0] == sys.executable and list(argv[1 : 1 + len(AGENT)]) == AGENT


def _libraries(name: str) -> tuple[str, ...]:
    """Return what a command imports."""
    return (*LIBRARIES, *(["exporter"] if name in EXPORTS else ()))


def _name(argv: Sequence[str]) -> str:
    """Return the command: the program, or what mjlab-dist is asked for."""
    name = Path(argv[0]).name
    return argv[1] if name == "mjlab-dist" and len(argv) > 1 else name
