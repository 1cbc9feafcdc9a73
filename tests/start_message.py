"""Send the arguments and the environment of a new process over a socket, and decide which commands can be forked.

This module imports only the standard library.
"""

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

AGENT = ["-P", "-u", "-W", "ignore:resource_tracker", "-m", "mjlab_dist.launch.agent"]
"""First arguments of Python for an agent."""

SIZE = struct.Struct("I")
"""Format of a message's length, which is sent before the message."""

ADDRESS = "\0mjlab_dist_warm_host"
"""Address of the server's socket on a host. An abstract address, which leaves no file."""

STATUS = struct.Struct("i")
"""Format of a host command's exit code, which is the negative signal number if a signal ended the command."""

HOST_SERVER = "warm_host.py"
"""Name of the script that forks commands on a host. Its processes have this name until they become a command."""

SIMULATES = (
    *("train", "torchrun", "evaluate", "size-buffers", "new-task", "verify", "scaling"),
    *("play", "check", "demo", "watch"),
)
"""Commands that simulate."""

EXPORTS = ("export", "pack")
"""Commands that write ONNX files."""

IMPORTS_NOTHING = {"--help", "-h", "--help-all", "--print-config"}
"""A command with one of these flags imports no libraries."""

SAFE = (
    *("MJLAB_DIST_", "PYTEST_", "COLUMNS", "HOME", "PATH", "XDG_CACHE_HOME", "SSH_AUTH_SOCK", "TMPDIR"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_", "SLURM_"),
    *("WANDB_", "NETRC", "HF_", "TRACKIO_", "FAKE_SLURM", "CUDA_DEVICE_ORDER", "IMAGEIO_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "TORCHRUNX_LOG_DIR"),
)
"""Prefixes of environment variables that no library reads when it is imported. A fork may thus have other values."""

SET_FOR_AGENTS = {
    *("PYOPENGL_PLATFORM", "TORCHINDUCTOR_CACHE_DIR"),  # set by imports of a test
    *("OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"),  # ranks set their number of threads
    *("CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID"),  # read when CUDA and EGL start
}
"""Variables of the test process that agents inherit, and that have no effect on the libraries of ranks."""

STARTS_PYTHON = ("sitecustomize.py", "usercustomize.py")
"""Modules that Python imports before a program if a folder in PYTHONPATH contains them."""


@dataclass
class Start:
    """Arguments and environment that an exec would receive."""

    argv: list[str]
    """Arguments after ``python``: a script, or -m and a module; then the arguments of the script or module."""
    environ: dict[str, str]
    cwd: str
    umask: int
    blocked: list[int]
    """Signals that the process blocks."""
    ignored: list[int]
    """Signals that the process ignores."""
    cores: list[int]
    """CPU cores that the process may use."""

    @classmethod
    def here(cls, argv: Sequence[str], environ: dict[str, str], cwd: str | None) -> Start:
        """Return what a child process of this process would receive."""
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
    """Send a description of what to start, and the file descriptors of its standard streams."""
    message = json.dumps(asdict(start)).encode()
    socket.send_fds(connection, [SIZE.pack(len(message))], descriptors)
    connection.sendall(message)


def receive(connection: socket.socket) -> tuple[Start, list[int]] | None:
    """Receive what :func:`send` sends. Return None if the other end is closed."""
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
    """Return whether a command in a directory can be forked.

    Only commands of this package, agents, and scripts of tests that are executed directly can be forked.
    `python script.py` is started by exec.

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
        # A missing variable is a change too, but not for agents: on other hosts, agents have few variables
        changed |= own.keys() - environ.keys()
    if "PYTHONPATH" in changed:
        folders = [cwd / each for each in environ.get("PYTHONPATH", "").split(os.pathsep)]
        if any((folder / name).is_file() for folder in folders for name in STARTS_PYTHON):
            return False
    return all(name.startswith(SAFE) for name in changed - {"PYTHONPATH"})


def is_agent(argv: Sequence[str]) -> bool:
    """Return whether a command starts an agent."""
    return argv[0] == sys.executable and list(argv[1 : 1 + len(AGENT)]) == AGENT


def name_of(argv: Sequence[str]) -> str:
    """Return the name of the program or, if the program is mjlab-dist, of its subcommand."""
    name = Path(argv[0]).name
    return argv[1] if name == "mjlab-dist" and len(argv) > 1 else name
