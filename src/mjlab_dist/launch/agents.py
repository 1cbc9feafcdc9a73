"""Start torchrunx's agents: one on each machine, which starts the ranks of that machine.

torchrunx itself would start agents with a shell command that contains the environment. Every user of a machine can read
its command lines, and thus any secrets in the environment. In this module, the agent on the launcher's machine inherits
its environment from the launcher, and agents on other machines read their environment from the standard input of an SSH
session.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from mjlab_dist.distributed.heartbeat import STOP_SIGNALS
from mjlab_dist.launch.agent import GREETING, HEARTBEAT, OWN_DIRECTORY, SILENCE, STORE
from mjlab_dist.launch.hosts.ssh import SSH_FAILED, program, ssh
from mjlab_dist.launch.supervision import Ended

# Seconds between two heartbeats to an agent on another machine
HEARTBEAT_S = 5.0

# Arguments of Python for an agent. -P: files of the current directory do not shadow modules. -W: after an agent is
# killed, its resource tracker removes its semaphores, and would print a warning.
MODULE = ("-P", "-u", "-W", "ignore:resource_tracker", "-m", "mjlab_dist.launch.agent")

# Messages of all agents of a launch, each with the name of its machine; None instead of a message if an agent has ended
Arrivals = queue.SimpleQueue[tuple[str, bytes | None]]

# Program that reads an environment and a command as JSON, and then replaces itself with that command
START = """
import json, os
from multiprocessing.connection import Connection
environ, command = json.loads(Connection(os.dup(0), writable=False).recv_bytes())
os.execve(command[0], command, {**os.environ, **environ})
"""


@contextlib.contextmanager
def waiting_agents(
    hosts: Sequence[str],
    ssh_config: str | None,
    arguments: Sequence[str],
    *,
    here: Mapping[str, str],
    there: Mapping[str, str],
    silence_s: float,
    errors: IO[str],
    store: socket.socket | None = None,
) -> Iterator[list[Agent]]:
    """Start an agent on each machine, and end the agents when the context ends.

    The signals that stop a run do not reach the agents. The agent on this machine takes over a listening socket, where
    it serves torch's store.
    """
    command = [sys.executable, *MODULE, *arguments]
    with contextlib.ExitStack() as stack:
        agents: list[Agent] = []
        arrivals: Arrivals = queue.SimpleQueue()

        def add(host: str, name: str, process: subprocess.Popen[bytes]) -> Agent:
            agents.append(agent := Agent(host, name, stack.enter_context(process), arrivals))
            stack.callback(agent.end)
            return agent

        passed = [] if store is None else [store.fileno()]
        serves = [f"{STORE}{descriptor}" for descriptor in passed]
        add(hosts[0], "torchrunx's agent", _start([*command, *serves], errors, env=here, pass_fds=passed))
        if store is not None:
            store.close()
        remote = f"cd {shlex.quote(str(Path.cwd()))} && exec {program(START)}"
        for host in hosts[1:]:
            agent = add(host, f"torchrunx's agent on {host}", _start(ssh(host, ssh_config, remote), errors))
            agent.send(json.dumps([there, [*command, OWN_DIRECTORY, f"{SILENCE}{silence_s:g}"]]).encode())
        # Heartbeats. SSH's server may notice only after hours that the network is interrupted.
        is_over = threading.Event()
        stack.callback(is_over.set)

        def beat() -> None:
            while not is_over.wait(HEARTBEAT_S):
                for agent in agents[1:]:
                    agent.send(HEARTBEAT)

        if len(agents) > 1:
            threading.Thread(target=beat, name="heartbeats to agents", daemon=True).start()
        yield agents


class Agent:
    """An agent, with which the launcher exchanges messages through the standard streams of a process.

    The process is the agent, or OpenSSH's client: an agent on another machine ends when its connection ends.
    """

    def __init__(self, host: str, name: str, process: subprocess.Popen[bytes], arrivals: Arrivals) -> None:
        self.host = host
        self.arrivals = arrivals
        self._name = name
        self._process = process
        self._is_stopped = False
        assert process.stdin is not None
        assert process.stdout is not None
        self._to = Connection(os.dup(process.stdin.fileno()), readable=False)
        self._sending = threading.Lock()
        connection = Connection(os.dup(process.stdout.fileno()), writable=False)
        threading.Thread(target=self._read, args=(connection,), name=f"messages of {name}", daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with (
            contextlib.suppress(OSError, EOFError),
            connection,
            open(connection.fileno(), "rb", buffering=0, closefd=False) as lines,
        ):
            # The shell of another machine may print something first
            while not (line := lines.readline()).endswith(GREETING):
                if not line:
                    raise EOFError
            while True:
                self.arrivals.put((self.host, connection.recv_bytes()))
        self.arrivals.put((self.host, None))

    def send(self, message: bytes) -> None:
        """Send a message; do nothing if the agent has ended."""
        with contextlib.suppress(OSError), self._sending:
            self._to.send_bytes(message)

    def ended(self) -> Ended | None:
        """Return how the agent ended; None while it runs, or if :meth:`end` has ended it."""
        code = self._process.poll()
        return None if code is None or self._is_stopped else Ended(self._name, -1 if code == SSH_FAILED else code)

    def end(self, patience_s: float = 0.0) -> None:
        """Kill the agent, which also ends its ranks.

        An agent that ends by itself closes its connections before its process ends. If this method waits
        ``patience_s`` seconds for that, :meth:`ended` can still return how the agent ended.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._is_stopped = self._process.poll() is None
        self._process.kill()  # this also ends its fork server and the ranks
        self._process.wait()
        with self._sending:
            self._to.close()


def _start(command: Sequence[str], errors: IO[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that the signals for stopping a run do not reach."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # children inherit the mask
    try:
        return subprocess.Popen[bytes](
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            **options,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
