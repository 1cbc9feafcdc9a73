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

from warm_process import SIZE, Start, send

from mjlab_dist.patching import patched

BIN = Path(sys.executable).parent

SERVER = Path(__file__).parent / "warm_process.py"

LIBRARIES = ("warp", "torchrunx.worker", "torchrunx.agent", "tyro", "rich.progress", "yaml", "dacite", "psutil")
"""Modules that commands import, in addition to those of a learner."""

TRAINS = ("train", "evaluate", "export", "size-buffers", "new-task", "verify", "scaling")
"""Commands that train or play in processes which do not draw."""

PLAYS = ("play", "check", "demo", "watch", "pack")
"""Commands that import MuJoCo themselves, after they have chosen how it draws."""

IMPORTS_NOTHING = {"--help", "-h", "--help-all", "--print-config"}
"""Flags of commands that import no libraries."""

SAFE = (
    *("MJLAB_DIST_", "PYTEST_", "COLUMNS", "HOME", "PATH", "XDG_CACHE_HOME", "SSH_AUTH_SOCK", "TMPDIR"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_", "SLURM_"),
    *("WANDB_", "NETRC", "HF_", "TRACKIO_", "WARP_CACHE_PATH", "FAKE_SLURM"),
)
"""Starts of the names of variables that no library reads when it is imported."""

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
        self._servers: dict[bool, tuple[subprocess.Popen[bytes], socket.socket]] = {}
        self._lock = threading.Lock()
        self.num_forks = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have subprocess.Popen fork what can be forked."""
        original = subprocess._fork_exec  # pyright: ignore[reportAttributeAccessIssue]

        def fork_exec(*args: Any) -> int:
            return self._fork(*args) or original(*args)

        with patched(subprocess, "_fork_exec", fork_exec):
            yield

    def close(self) -> None:
        """End the processes."""
        for process, connection in self._servers.values():
            connection.close()
            process.wait()

    def _fork(self, *args: Any) -> int | None:
        """Take the arguments of _posixsubprocess.fork_exec; return None if the command needs an exec."""
        argv, _, _, passed, cwd, variables, stdin, _, _, stdout, _, stderr, _, error = args[:14]
        new_session, group, gid, groups, uid, umask, preexec = args[15:22]
        if (not new_session, group, gid, groups, uid, umask, preexec) != (False, -1, None, None, None, -1, None):
            return None
        if variables is None or tuple(passed) != (error,):
            return None
        argv = [os.fsdecode(each) for each in argv]
        environ = dict(os.fsdecode(each).split("=", 1) for each in variables)
        start = Start.here(argv, environ, os.fspath(cwd) if cwd else None)
        if not self.forks(argv, environ, Path(start.cwd)):
            return None
        descriptors = [each if each >= 0 else own for own, each in enumerate((stdin, stdout, stderr))]
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            server = self._server(draws=_name(argv) in PLAYS)
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
        """Return whether a command in a directory is forked."""
        if Path(argv[0]).parent != BIN or _name(argv) not in TRAINS + PLAYS or IMPORTS_NOTHING & set(argv):
            return False
        changed = {name for name, _ in environ.items() ^ self._environ.items()}
        if "PYTHONPATH" in changed:
            folders = [cwd / each for each in environ.get("PYTHONPATH", "").split(os.pathsep)]
            if any((folder / name).is_file() for folder in folders for name in STARTS_PYTHON):
                return False
        return all(name.startswith(SAFE) for name in changed - {"PYTHONPATH"})

    def _server(self, *, draws: bool) -> socket.socket:
        if draws not in self._servers:
            ours, theirs = socket.socketpair()
            libraries = LIBRARIES if draws else (*LIBRARIES, "mujoco_warp")
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, str(SERVER), str(theirs.fileno()), *libraries],
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            self._servers[draws] = process, ours
        return self._servers[draws][1]


def _name(argv: Sequence[str]) -> str:
    """Return the command: the program, or what mjlab-dist is asked for."""
    name = Path(argv[0]).name
    return argv[1] if name == "mjlab-dist" and len(argv) > 1 else name
