"""Fork commands on a host of :class:`host_lab.Lab`, from a process that has imported libraries.

A fork of warm_process.py runs this server, and ``host_command.py`` on the host connects to it. All processes of a
command are in the host's PID namespace, which cannot end before each has been waited for: a process between the server
and the command does this, and sends the exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

from start_message import ADDRESS, STATUS, Start, can_fork, receive

NAMESPACES = ("net", "uts", "ipc", "mnt")
"""Namespaces of a host, in addition to that of process IDs."""

NO_EFFECT = {
    *("_", "OLDPWD", "PWD", "SHLVL", "MAIL", "SHELL", "LOGNAME", "USER", "SSH_CLIENT", "SSH_CONNECTION"),
    *("LC_CTYPE", "OMP_WAIT_POLICY", "HOSTS_LAB", "TORCHINDUCTOR_CACHE_DIR"),
}
"""Variables set by shells, SSH servers, Python and tests with hosts, which have no effect on the libraries."""


def serve_host(first: int) -> tuple[Start, list[int], int]:
    """Enter the namespaces of a host's first process, and fork for each connection.

    Returns:
        In the forks only, what to start, its standard streams, and a file for the process ID.
    """
    pids, *others = [os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY) for name in ("pid", *NAMESPACES)]
    enter(pids)  # only child processes are in it
    if server := os.fork():
        for each in others:
            os.close(each)
        os.waitpid(server, 0)
        os._exit(0)
    for each in others:
        enter(each)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(ADDRESS)
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
