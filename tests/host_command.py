"""Run a command in a fork of the server in warm_host.py, or by exec if it cannot be forked.

The arguments are the ID of the process whose namespaces the server has entered, and the command. On a host of
:class:`host_lab.Lab`, the only argument is the command as JSON. No ID is needed, because such a host has only one
server. The command is JSON so that tests that search for a command line do not find this process.

The SSH server of a host runs this script without arguments for each session. The script then runs the client's command.
If the command starts an agent, the agent is forked as described above.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = str(Path(__file__).parent)


def address_of(first: int | None) -> str:
    """Return the address of the fork server.

    Args:
        first: ID of the process whose namespaces the server has entered; None if the network namespace has one server.
    """
    from start_message import ADDRESS

    return ADDRESS if first is None else f"{ADDRESS}_{first}"


def run(path: str, argv: list[str], environ: dict[str, str], first: int | None = None) -> NoReturn:
    """Run a command as :func:`os.execve` does, but in a fork if possible. Exit with the fork's exit code or signal.

    This process ignores SIGTERM, because a scheduler that stops the command may send SIGTERM to both processes.
    """
    sys.path.append(FOLDER)
    import signal
    import socket

    from start_message import HOST_SERVER, STATUS, Start, send

    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(address_of(first))
        send(server, Start.here(argv, environ, None), (0, 1, 2))
        is_forked = server.recv(1) == b"1"
    except OSError:
        is_forked = False
    if not is_forked:
        os.execve(path, argv, environ)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("/proc/self/comm").write_text(HOST_SERVER)
    null = os.open(os.devnull, os.O_RDWR)
    for each in range(3):
        os.dup2(null, each)
    status = server.recv(STATUS.size)
    code = STATUS.unpack(status)[0] if status else 1
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[2:]:
        run(sys.argv[2], sys.argv[2:], dict(os.environ), int(sys.argv[1]))
    if sys.argv[1:]:
        command = json.loads(sys.argv[1])
        run(command[0], command, dict(os.environ))
    asked = os.environ.pop("SSH_ORIGINAL_COMMAND")
    # Replace the exec in agents.START, the command that starts agents
    forks = f"sys.path.append({json.dumps(FOLDER)}); import host_command; host_command.run("
    shell = os.environ["SHELL"]
    os.execv(shell, [shell, "-c", asked.replace("os.execve(", forks)])
