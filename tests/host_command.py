"""Run a command on a host of :class:`host_lab.Lab`: by a fork of the server there (warm_host.py), or by exec.

The argument is the command as JSON, so that tests find only the forked process by its arguments. Without an argument,
this is the command that the SSH server runs for each session: it runs what the client asks for, and agents as above.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = str(Path(__file__).parent)


def run(path: str, argv: list[str], environ: dict[str, str]) -> NoReturn:
    """Run a command as :func:`os.execve` does, but in a forked process if possible. End as that one ends."""
    sys.path.append(FOLDER)
    import signal
    import socket

    from start_message import ADDRESS, HOST_SERVER, STATUS, Start, send

    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(ADDRESS)
        send(server, Start.here(argv, environ, None), (0, 1, 2))
        is_forked = server.recv(1) == b"1"
    except OSError:
        is_forked = False
    if not is_forked:
        os.execve(path, argv, environ)
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
    if sys.argv[1:]:
        command = json.loads(sys.argv[1])
        run(command[0], command, dict(os.environ))
    asked = os.environ.pop("SSH_ORIGINAL_COMMAND")
    # Agents are started by agents.START
    forks = f"sys.path.append({json.dumps(FOLDER)}); import host_command; host_command.run("
    shell = os.environ["SHELL"]
    os.execv(shell, [shell, "-c", asked.replace("os.execve(", forks)])
