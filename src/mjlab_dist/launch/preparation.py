"""Prepare a launch before torchrunx starts its ranks: secret, sockets, temporary files, agents. Imports no torch.

Here, a launch is one start of the ranks of a run; every restart is another launch. An agent starts the ranks of one
machine. torchrunx itself would start agents with a shell command that contains the environment. Every user of a machine
can read its command lines, and thus any secrets in the environment. In this module, the agent on the launcher's machine
inherits its environment from the launcher, and agents on other machines read their environment from the standard input
of an SSH session.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import STOP_SIGNALS
from mjlab_dist.distributed.rank import MEETING_POINT
from mjlab_dist.errors import UserError
from mjlab_dist.launch.channel import LAUNCHER, SECRET, address_of, new_secret
from mjlab_dist.launch.hosts.ssh import SSH_FAILED, end_on_hosts, listen_on, own_address, program, ssh
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.supervision import Ended
from mjlab_dist.launch.torchrunx_agent import FORK, GREETING, HEARTBEAT, OWN_DIRECTORY, SILENCE, STORE
from mjlab_dist.machine.processes import LAUNCH, end_children, temporary_directory
from mjlab_dist.messages import Listener
from mjlab_dist.runs.provenance import LOGIN, SECRETS

# Seconds between two heartbeats to an agent on another machine
HEARTBEAT_S = 5.0

# Arguments of Python for an agent. -P: files of the current directory do not shadow modules. -W: after an agent is
# killed, its resource tracker removes its semaphores, and would print a warning.
AGENT_ARGUMENTS = ("-P", "-u", "-W", "ignore:resource_tracker", "-m", "mjlab_dist.launch.torchrunx_agent")

# Messages of all agents of a launch, each with the name of its machine; None instead of a message if an agent has ended
Arrivals = queue.SimpleQueue[tuple[str, bytes | None]]

# Program that reads an environment and a command as JSON, and then replaces itself with that command
EXEC_PROGRAM = """
import json, os
from multiprocessing.connection import Connection
environ, command = json.loads(Connection(os.dup(0), writable=False).recv_bytes())
os.execve(command[0], command, {**os.environ, **environ})
"""

# Environment variables that ranks on other machines need, as patterns
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_*",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "PYTHON*",
    "CUDA*",
    "TORCH*",
    "PYTORCH*",
    "NCCL*",
    "GLOO*",
    "OMP*",
    "MKL*",
    "MUJOCO*",
    "WARP*",
    "WANDB*",
    "XDG_CACHE_HOME",
    "MJLAB_DIST*",
)


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
    command = [sys.executable, *AGENT_ARGUMENTS, *arguments]
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
        remote = f"cd {shlex.quote(str(Path.cwd()))} && exec {program(EXEC_PROGRAM)}"
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


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A prepared launch. Its agents (one process per machine, which starts ranks) wait for arguments from torchrunx."""

    # Value of the variable that marks all its processes
    name: str
    # Secret of the launch, which only its processes have
    secret: bytes
    # Socket that ranks connect to
    listener: socket.socket
    # Where ranks meet: host:port, or the path of a file
    meeting_point: str
    # The agents, one per machine
    agents: Sequence[Agent]
    # What the agents print, and their ranks before they have connected
    errors: IO[str]


@contextlib.contextmanager
def prepared(config: TrainConfig, plan: RunPlan, listen: Listener) -> Iterator[Launch]:
    """Prepare a launch, and end its agents when the context ends."""
    # The name must be short, because it is part of the paths of sockets. remove_own finds this process's temporary
    # directories by the process ID in the name.
    name = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    address, secret = own_address(plan.host_names), new_secret()
    with (
        temporary_directory(name) as temporary,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        contextlib.ExitStack() as stack,
    ):
        # Sockets. If they were opened later, another process could take the ports in the meantime.
        listener = stack.enter_context(listen_in_range(address, config.port_range))
        store = None if len(plan.hosts) == 1 else stack.enter_context(listen_in_range(address, config.port_range))
        meeting_point = f"{address}:{store.getsockname()[1]}" if store else str(Path(temporary) / "store")
        # Start the agents
        own = {LAUNCH: name, SECRET: secret, MEETING_POINT: meeting_point, LAUNCHER: address_of(listener)}
        # Pass all of sys.path, as multiprocessing does, because it includes the directory of the user's script
        variables = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), **own}
        forks = can_fork(plan.devices, os.environ)
        try:
            agents = stack.enter_context(
                waiting_agents(
                    plan.host_names,
                    config.ssh_config,
                    [FORK] if forks else [],
                    here={**os.environ, **variables, "TMPDIR": temporary},
                    there={**{each: os.environ[each] for each in exported_names(os.environ)}, **variables},
                    silence_s=remote_timeout_s(config),
                    errors=errors,
                    store=store,
                )
            )
            how = "forked" if forks else "spawned"
            listen({"kind": "debug", "text": f"launcher: started torchrunx's agents, ranks are {how}"})
            yield Launch(
                name=name,
                secret=bytes.fromhex(secret),
                listener=listener,
                meeting_point=meeting_point,
                agents=agents,
                errors=errors,
            )
        finally:
            # Even if an interrupt comes before the ranks start: while an agent is started, or imports its libraries
            end_children(name)


def remote_timeout_s(config: TrainConfig) -> int:
    """Return the timeout, in seconds, for contact between the launcher and the agents on other machines.

    After this time without contact, the agents end, and the launcher raises an error.
    """
    return max(60, round(config.hang_timeout))


def end_processes(config: TrainConfig, hosts: Sequence[str], launch: str, listen: Listener) -> list[str]:
    """Kill all processes of a launch, on all machines, and wait until they have ended.

    Returns:
        Machines that do not answer.
    """
    end_children(launch)
    left = end_on_hosts(hosts, config.ssh_config, launch)
    if left:
        text = f"no answer from {', '.join(left)}: processes of this run may still be running there"
        listen({"kind": "warning", "text": text})
    return left


def exported_names(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that ranks on other machines get. Ranks on this machine inherit all."""
    return [
        name
        for name, value in environ.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in ENVIRONMENT)
        and not any(word in name for word in SECRETS)
        and not LOGIN.search(value)
    ]


def can_fork(devices: Sequence[RankDevice], environ: Mapping[str, str]) -> bool:
    """Return whether ranks can be forked from a process that has imported their libraries.

    If MUJOCO_GL is set, importing MuJoCo initializes EGL or OSMesa. EGL, OSMesa and CUDA do not work after a fork.
    """
    return all(device.device == "cpu" for device in devices) and "MUJOCO_GL" not in environ


def listen_in_range(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Return a socket that listens on a free port of an address of this machine."""
    if ports is None:
        return listen_on(address)
    for port in range(ports[0], ports[1] + 1):
        with contextlib.suppress(OSError):
            return listen_on(address, port)
    raise UserError(f"--port-range {ports[0]} {ports[1]}: too few ports are free; give a wider range")
