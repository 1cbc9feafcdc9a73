"""Fork commands in the namespaces of another process, from a process that has imported libraries.

The other process is the first one on a host of :class:`host_lab.Lab`, or has only file systems of its own, or no
namespace of its own. A fork of warm_process.py runs this server, and ``host_command.py`` connects to it there. All
processes of a command on a host are in the host's PID namespace, which cannot end before each has been waited for: a
process between the server and the command does this, and sends the exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from host_command import address_of
from start_message import STATUS, Start, can_fork, receive

NAMESPACES = ("user", "pid", "net", "uts", "ipc", "mnt")
"""Namespaces of a host, in the order in which they can be entered."""

PR_SET_PDEATHSIG = 1
"""Operation of prctl(2)."""

NO_EFFECT = {
    *("_", "OLDPWD", "PWD", "SHLVL", "MAIL", "SHELL", "LOGNAME", "USER", "SSH_CLIENT", "SSH_CONNECTION"),
    *("LC_CTYPE", "OMP_WAIT_POLICY", "HOSTS_LAB", "TORCHINDUCTOR_CACHE_DIR", "SLURMD_NODENAME"),
}
"""Variables set by shells, SSH servers, Python, SLURM and tests with hosts, which have no effect on the libraries."""


def serve_host(first: int) -> tuple[Start, list[int], int]:
    """Enter the namespaces of a process, such as a host's first one, and fork for each connection.

    Returns:
        In the forks only, what to start, its standard streams, and a file for the process ID.
    """
    others = [name for name in NAMESPACES if namespace(first, name) != namespace("self", name)]
    for each in [os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY) for name in others]:
        enter(each)
    if "pid" in others:  # only child processes are in it
        if server := os.fork():
            os.waitpid(server, 0)
            os._exit(0)
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing else ends it if the test process is killed
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address_of(None if "net" in others else first))
    listener.listen(100)
    os.write(1, b"1")  # it is ready
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes between
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return answer(connection)
        connection.close()


def namespace(process: int | str, name: str) -> str:
    """Return the name of a namespace of a process."""
    return str(Path(f"/proc/{process}/ns/{name}").readlink())


def enter(namespace: int) -> None:
    """Enter a namespace, and close its file."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(namespace)


def answer(connection: socket.socket) -> tuple[Start, list[int], int]:
    """Fork a command and send how it ends; return in the fork only. Send nothing if the command needs an exec."""
    message = receive(connection)
    if message is None or not is_forked(start := message[0]):
        os._exit(0)
    connection.sendall(b"1")
    if (pid := os.fork()) == 0:
        connection.close()
        return start, message[1], os.open(os.devnull, os.O_WRONLY)
    for each in message[1]:
        os.close(each)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(STATUS.pack(code))
    os._exit(0)


def is_forked(start: Start) -> bool:
    """Return whether a command is forked, and remove Python from the arguments of an agent or script."""
    own, theirs = (
        {k: v for k, v in each.items() if not (k in NO_EFFECT or k.startswith("PYENV_"))}
        for each in (os.environ, start.environ)
    )
    argv = start.argv
    is_script = Path(argv[0]).name.startswith("python") and argv[1].endswith(".py")
    if is_script or argv[0] == sys.executable:
        start.argv = argv[1:]
    return can_fork(start.argv if is_script else argv, theirs, Path(start.cwd), own)
