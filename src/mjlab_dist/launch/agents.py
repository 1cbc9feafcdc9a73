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
from pathlib import Path
from typing import IO, Any

from mjlab_dist.control import STOP_SIGNALS
from mjlab_dist.launch.agent import HEARTBEAT, OWN_DIRECTORY, SILENCE
from mjlab_dist.launch.hosts import SSH_FAILED, program, ssh
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
        agents = [Agent(hosts[0], "torchrunx's agent", _start(command, errors, env=here))]
        stack.callback(agents[0].end)
        remote = f"cd {shlex.quote(str(Path.cwd()))} && exec {program(START)}"
        for host in hosts[1:]:
            client = _start(ssh(host, ssh_config, remote), errors, stdout=subprocess.DEVNULL)
            agent = Agent(host, f"torchrunx's agent on {host}", client)
            stack.callback(agent.end)
            agent.send([there, [*command, OWN_DIRECTORY, f"{SILENCE}{silence_s:g}"]])
            agents.append(agent)
        # Heartbeats. SSH's server may notice only after hours that the network is interrupted.
        is_over = threading.Event()
        stack.callback(is_over.set)

        def beat() -> None:
            while not is_over.wait(HEARTBEAT_S):
                for agent in agents[1:]:
                    agent.send_bytes(HEARTBEAT)

        if len(agents) > 1:
            threading.Thread(target=beat, name="heartbeats to agents", daemon=True).start()
        yield agents


class Agent:
    """An agent, which waits for torchrunx's arguments.

    The process is the agent, or OpenSSH's client: an agent on another machine ends when its connection ends.
    """

    def __init__(self, host: str, name: str, process: subprocess.Popen[bytes]) -> None:
        self.host = host
        self._name = name
        self._process = process
        self._is_stopped = False
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send a line of JSON; do nothing if the agent has ended."""
        self.send_bytes((json.dumps(message) + "\n").encode())

    def send_bytes(self, line: bytes) -> None:
        """Send a line; do nothing if the agent has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._sending:  # ValueError: end() has closed the pipe
            self._process.stdin.write(line)
            self._process.stdin.flush()

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
        self._process.communicate()


def _start(command: Sequence[str], errors: IO[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that the signals for stopping a run do not reach."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # children inherit the mask
    try:
        return subprocess.Popen[bytes](command, stdin=subprocess.PIPE, stderr=errors, start_new_session=True, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
