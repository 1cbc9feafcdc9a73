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
from typing import IO, Any

from start_message import EXPORTS, HOST_SERVER, SIZE, Start, can_fork, is_agent, name_of, send

from mjlab_dist.patching import patched

SERVER = Path(__file__).parent / "warm_process.py"

LIBRARIES = (
    *("warp", "torchrunx.worker", "torchrunx.agent", "rich.progress", "yaml", "dacite", "psutil", "numpy.random"),
    *("tyro", "tyro._backends._tyro_backend", "typeguard", "mujoco_warp"),
)
"""Modules that commands import, in addition to the modules of a learner."""

PR_SET_CHILD_SUBREAPER = 36


class WarmStarts:
    """Processes with imported libraries, from which commands are forked. Each process starts when it is first needed.

    Args:
        environ: Environment of the processes. Commands with other variables that libraries may read are not forked.

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
        """Let subprocess.Popen fork, in all threads, the commands that can be forked."""
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
        """Stand in for _posixsubprocess.fork_exec, with its arguments. Return None if the command needs an exec."""
        argv, _, _, passed, cwd, variables, stdin, _, _, stdout, _, stderr, _, error = args[:14]
        new_session, group, gid, groups, uid, umask, preexec = args[15:22]
        if (not new_session, group, gid, groups, uid, preexec) != (False, -1, None, None, None, None):
            return None
        if variables is None or tuple(passed) != (error,):
            return None
        argv = [os.fsdecode(each) for each in argv]
        environ = dict(os.fsdecode(each).split("=", 1) for each in variables)
        start = Start.here(argv[is_agent(argv) :], environ, os.fspath(cwd) if cwd else None)
        start.umask = start.umask if umask < 0 else umask
        if not self.forks(argv, environ, Path(start.cwd)):
            return None
        descriptors = [each if each >= 0 else own for own, each in enumerate((stdin, stdout, stderr))]
        prctl = ctypes.CDLL(None).prctl
        with self._forking:
            server = self._server(_libraries(name_of(argv)))
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
        """Return whether a command in a directory can be forked: see :func:`start_message.can_fork`."""
        return can_fork(argv, environ, cwd, self._environ)

    def start_on_host(self, first: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Fork the server of the host whose first process has this ID, and wait until the server accepts commands."""
        with self.used():
            server = subprocess.Popen(
                [SERVER.with_name(HOST_SERVER), str(first)],
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert server.stdout
        with server.stdout:
            assert server.stdout.read(1)
        return server

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


def _libraries(name: str) -> tuple[str, ...]:
    """Return the modules that a command imports."""
    return (*LIBRARIES, *(["exporter"] if name in EXPORTS else ()))
