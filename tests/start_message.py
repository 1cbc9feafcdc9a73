"""What a new process receives, sent over a socket, and which commands can be forked. Needs no other libraries."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

BIN = Path(sys.executable).parent

AGENT = ["-u", "-W", "ignore:resource_tracker", "-m", "mjlab_dist.launch.agent"]
"""First arguments of Python for an agent."""

SIZE = struct.Struct("I")
"""Length of a message, which precedes it."""

ADDRESS = "\0mjlab_dist_warm_host"
"""Socket of the server on a host: an abstract one, which leaves no file."""

STATUS = struct.Struct("i")
"""Exit code, or negative signal, of a command on a host."""

HOST_SERVER = "warm_host.py"
"""Name of the script that forks commands on a host, and the name of all its processes that are not yet a command."""

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
    *("CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID"),  # read when CUDA and EGL start
}
"""Variables of the test process that agents inherit, and that have no effect on the libraries of ranks."""

STARTS_PYTHON = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports before a program, if a folder of PYTHONPATH has them."""


@dataclass
class Start:
    """Arguments and environment that an exec would receive."""

    argv: list[str]
    """Python's arguments, without Python: a script or -m and a module, and theirs."""
    environ: dict[str, str]
    cwd: str
    umask: int
    blocked: list[int]
    """Signals that are blocked."""
    ignored: list[int]
    """Signals that are ignored."""
    cores: list[int]
    """Cores that it may use."""

    @classmethod
    def here(cls, argv: Sequence[str], environ: dict[str, str], cwd: str | None) -> Start:
        """Return what a child process of this one would receive."""
        os.umask(umask := os.umask(0o077))
        return cls(
            argv=list(argv),
            environ=environ,
            cwd=os.path.abspath(cwd or os.getcwd()),  # noqa: PTH100, PTH109
            umask=umask,
            blocked=[int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
            ignored=[int(each) for each in signal.valid_signals() if signal.getsignal(each) is signal.SIG_IGN],
            cores=sorted(os.sched_getaffinity(0)),
        )


def send(connection: socket.socket, start: Start, descriptors: Sequence[int]) -> None:
    """Send what to start, and its standard streams."""
    message = json.dumps(asdict(start)).encode()
    socket.send_fds(connection, [SIZE.pack(len(message))], descriptors)
    connection.sendall(message)


def receive(connection: socket.socket) -> tuple[Start, list[int]] | None:
    """Receive what :func:`send` sends; None if the other end is closed."""
    try:
        header, descriptors, _, _ = socket.recv_fds(connection, SIZE.size, 3)
    except ConnectionResetError:
        return None
    if not header:
        return None
    message = bytearray()
    while len(message) < SIZE.unpack(header)[0]:
        if not (part := connection.recv(1 << 20)):
            return None
        message += part
    return Start(**json.loads(message)), descriptors


def can_fork(argv: Sequence[str], environ: Mapping[str, str], cwd: Path, own: Mapping[str, str]) -> bool:
    """Return whether a command in a directory can be forked: one of this package, an agent, or a script of a test.

    A script is forked if it is executed itself, and started by exec if it is an argument of Python.

    Args:
        argv: The command.
        environ: Its environment.
        cwd: Its directory.
        own: Environment of the process that would be forked.
    """
    changed = {name for name, value in environ.items() if own.get(name) != value}
    if is_agent(argv):
        changed -= SET_FOR_AGENTS
    else:
        is_command = Path(argv[0]).parent == BIN and name_of(argv) in SIMULATES + EXPORTS
        if not (is_command or argv[0].endswith(".py")) or IMPORTS_NOTHING & set(argv):
            return False
        changed |= own.keys() - environ.keys()  # agents of other hosts have few variables
    if "PYTHONPATH" in changed:
        folders = [cwd / each for each in environ.get("PYTHONPATH", "").split(os.pathsep)]
        if any((folder / name).is_file() for folder in folders for name in STARTS_PYTHON):
            return False
    return all(name.startswith(SAFE) for name in changed - {"PYTHONPATH"})


def is_agent(argv: Sequence[str]) -> bool:
    """Return whether a command is Python with an agent."""
    return argv[0] == sys.executable and list(argv[1 : 1 + len(AGENT)]) == AGENT


def name_of(argv: Sequence[str]) -> str:
    """Return the command: the program, or what mjlab-dist is asked for."""
    name = Path(argv[0]).name
    return argv[1] if name == "mjlab-dist" and len(argv) > 1 else name
