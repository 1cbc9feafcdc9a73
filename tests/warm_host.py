"""Enter the namespaces of another process, and fork commands there without importing the libraries again.

The other process is one of: the first process of a simulated host (:class:`host_lab.Lab`); a process with its own
mounts (mounts.py); a process without its own namespaces. The server is a fork of warm_process.py. ``host_command.py``,
in the same namespaces, connects to the server.

The PID namespace of a host ends only after all of its processes have been waited for. For each command, the server
therefore forks a process that forks the command, waits for its end, and sends its exit code.
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
"""Operation of prctl(2): send a signal to this process when its parent ends."""

NO_EFFECT = {
    *("_", "OLDPWD", "PWD", "SHLVL", "MAIL", "SHELL", "LOGNAME", "USER", "SSH_CLIENT", "SSH_CONNECTION"),
    *("LC_CTYPE", "OMP_WAIT_POLICY", "HOSTS_LAB", "TORCHINDUCTOR_CACHE_DIR", "SLURMD_NODENAME"),
}
"""Variables with which a command can still be forked, because libraries do not use them. Shells, SSH servers, Python,
SLURM and tests with hosts set these variables."""


def serve_host(first: int) -> tuple[Start, list[int], int]:
    """Enter the namespaces of a process, and fork a command for each connection.

    Returns:
        Only in the forks: the command to become, its standard streams, and a descriptor to which the fork writes its
        process ID.
    """
    others = [name for name in NAMESPACES if namespace(first, name) != namespace("self", name)]
    for each in [os.open(f"/proc/{first}/ns/{name}", os.O_RDONLY) for name in others]:
        enter(each)
    if "pid" in others:  # only child processes are in the new namespace
        if server := os.fork():
            os.waitpid(server, 0)
            os._exit(0)
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end together with the test process
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address_of(None if "net" in others else first))
    listener.listen(100)
    os.write(1, b"1")  # the server is ready
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes forks that have ended
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
    """Fork a command, and send its exit code. Return only in the fork. Send nothing if the command cannot be forked."""
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
    """Return whether a command can be forked. Remove the interpreter from the arguments of an agent or script."""
    own, theirs = (
        {k: v for k, v in each.items() if not (k in NO_EFFECT or k.startswith("PYENV_"))}
        for each in (os.environ, start.environ)
    )
    argv = start.argv
    is_script = Path(argv[0]).name.startswith("python") and argv[1].endswith(".py")
    if is_script or argv[0] == sys.executable:
        start.argv = argv[1:]
    return can_fork(start.argv if is_script else argv, theirs, Path(start.cwd), own)
