"""Start torchrunx's agents: one on each machine, which starts the ranks of that machine.

torchrunx itself would start agents with a shell command that contains the environment. Every user of a machine can read
its command lines, and thus any secrets in the environment. In this module, the agent on the launcher's machine inherits
its environment from the launcher, and agents on other machines read their environment from the standard input of an SSH
session.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Protocol

from mjlab_dist.control import STOP_SIGNALS
from mjlab_dist.errors import Exit, PreflightError, RankError
from mjlab_dist.launch.agent import HEARTBEAT, OWN_DIRECTORY, SILENCE
from mjlab_dist.launch.hosts import connect, program
from mjlab_dist.launch.supervision import Ended

# Seconds between two heartbeats to an agent on another machine
HEARTBEAT_S = 5.0

# Arguments of Python for an agent. -P: files of the current directory do not shadow modules. -W: after an agent is
# killed, its resource tracker removes its semaphores, and would print a warning.
MODULE = ("-P", "-u", "-W", "ignore:resource_tracker", "-m", "mjlab_dist.launch.agent")

# Program that reads an environment and a command as a line of JSON, and then replaces itself with that command
START = """
import json, os, sys
environ, command = json.loads(open(0, "rb", buffering=0, closefd=False).readline())
os.execve(command[0], command, {**os.environ, **environ})
"""


class Agent(Protocol):
    """An agent, which waits for torchrunx's arguments."""

    # Name of its machine
    host: str

    def run(self, arguments: Sequence[str]) -> None:
        """Pass torchrunx's arguments to the agent; do nothing if the agent has ended."""
        ...

    def ended(self) -> Ended | None:
        """Return how the agent ended; None while it runs, or if :meth:`end` has ended it."""
        ...

    def end(self, patience_s: float = 0.0) -> None:
        """Kill the agent, which also ends its ranks.

        An agent that ends by itself closes its connections before its process ends. If this method waits
        ``patience_s`` seconds for that, :meth:`ended` can still return how the agent ended.
        """
        ...


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
) -> Iterator[list[Agent]]:
    """Start an agent on each machine, and end the agents when the context ends.

    The signals that stop a run do not reach the agents.
    """
    command = [sys.executable, *MODULE, *arguments]
    with contextlib.ExitStack() as stack:
        agents: list[Agent] = [_LocalAgent(hosts[0], command, here, errors)]
        stack.callback(agents[0].end)
        # Start the agents on other machines in parallel. If one cannot be started, the others are ended.
        with ThreadPoolExecutor(max(1, len(hosts) - 1)) as pool:
            starting = [
                pool.submit(_RemoteAgent, host, ssh_config, [*command, OWN_DIRECTORY, f"{SILENCE}{silence_s:g}"], there)
                for host in hosts[1:]
            ]
        for started in starting:
            if started.exception() is None:
                agents.append(started.result())
                stack.callback(agents[-1].end)
        for host, started in zip(hosts[1:], starting, strict=True):
            if isinstance(error := started.exception(), PreflightError):
                raise error
            if error is not None:
                raise RankError(f"{host}: the agent cannot be started: {error}", exit_code=Exit.INFRASTRUCTURE)
        yield agents


class _LocalAgent:
    """Agent on the launcher's machine."""

    def __init__(self, host: str, command: Sequence[str], environ: Mapping[str, str], errors: IO[str]) -> None:
        self.host = host
        self._is_stopped = False
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # children inherit the mask
        try:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def run(self, arguments: Sequence[str]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(arguments) + "\n")
            self._process.stdin.flush()

    def ended(self) -> Ended | None:
        code = self._process.poll()
        return None if code is None or self._is_stopped else Ended("torchrunx's agent", code)

    def end(self, patience_s: float = 0.0) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._is_stopped = self._process.poll() is None
        self._process.kill()  # this also ends its fork server and the ranks
        self._process.communicate()


class _RemoteAgent:
    """Agent on another machine. It ends when the launcher closes the connection, ends, or cannot be reached.

    SSH's server may notice only after hours that the network is interrupted, so the launcher sends heartbeats.
    """

    def __init__(self, host: str, ssh_config: str | None, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.host = host
        self._is_stopped = False
        self._connection = connect(host, ssh_config)
        try:
            self._connection.open()
            self._channel = self._connection.create_session()
            self._channel.exec_command(f"cd {shlex.quote(str(Path.cwd()))} && exec {program(START)}")
        except BaseException:
            self._connection.close()
            raise
        self._sending = threading.Lock()
        self._is_closed = threading.Event()
        self._send([variables, command])
        threading.Thread(target=self._beat, name=f"heartbeats to {host}", daemon=True).start()

    def _send(self, message: object) -> None:
        self._send_bytes((json.dumps(message) + "\n").encode())

    def _send_bytes(self, line: bytes) -> None:
        with contextlib.suppress(OSError), self._sending:
            self._channel.sendall(line)

    def _beat(self) -> None:
        while not self._is_closed.wait(HEARTBEAT_S):
            self._send_bytes(HEARTBEAT)

    def run(self, arguments: Sequence[str]) -> None:
        self._send(arguments)

    def ended(self) -> Ended | None:
        if self._is_stopped or not self._channel.exit_status_ready():
            return None
        # The status is -1 if a signal killed the agent, or the connection is lost
        return Ended(f"torchrunx's agent on {self.host}", self._channel.recv_exit_status())

    def end(self, patience_s: float = 0.0) -> None:
        self._channel.status_event.wait(patience_s)
        self._is_stopped = not self._channel.exit_status_ready()
        self._is_closed.set()
        self._connection.close()
