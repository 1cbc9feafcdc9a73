"""Connections between torchrunx's launcher and its agents, over which they exchange pickled objects.

An agent is the process that starts the ranks of one machine. torchrunx itself uses gloo and a TCPStore, which listen on
all addresses and accept any connection. Here, both ends of a connection must prove that they know the launch's secret.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Container, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, ClassVar

import cloudpickle
from torchrunx.utils.comm import LauncherAgentGroup
from torchrunx.utils.errors import AgentFailedError

from mjlab_dist.launch.handshake import accept_proven, authenticate, secret_of, shut_down
from mjlab_dist.wording import listed

# Seconds between two checks for an abort while agents connect
ABORT_POLL_S = 0.2

# Maximum length of the first message: `agent` with its rank in the group, or `rank` with its rank
MAX_NAME_BYTES = 16


class LauncherGroup(LauncherAgentGroup[Any]):
    """The launcher's side: a connection to each agent. torchrunx creates the object."""

    listener: ClassVar[socket.socket]
    hosts: ClassVar[Sequence[str]]
    admit_rank: ClassVar[Callable[[int, Connection], None]]  # called in a thread of its own for each rank
    peers: ClassVar[list[socket.socket]]
    agents: ClassVar[dict[int, Connection]]
    changed: ClassVar[threading.Condition]
    is_aborted: ClassVar[threading.Event]

    @classmethod
    def listening(
        cls,
        listener: socket.socket,
        secret: bytes,
        hosts: Sequence[str],
        admit_rank: Callable[[int, Connection], None] = lambda _rank, _connection: None,
    ) -> type[LauncherGroup]:
        """Accept connections, and return a subclass for one launch, from which torchrunx creates its group."""
        attributes = {
            "listener": listener,
            "hosts": hosts,
            "admit_rank": staticmethod(admit_rank),
            "peers": [],
            "agents": {},
            "changed": threading.Condition(),
            "is_aborted": threading.Event(),
        }
        made = type(cls.__name__, (cls,), attributes)
        threading.Thread(target=accept_proven, args=(listener, secret, made.admit), name="agents", daemon=True).start()
        return made

    @classmethod
    def abort(cls) -> None:
        """Make every wait for an agent fail at once, in all threads.

        Otherwise, torchrunx's launcher would continue to wait for the agent of a lost machine. After this
        wait, the launcher would end the agents of the next attempt.
        """
        cls.is_aborted.set()
        shut_down(cls.listener)
        for peer in cls.peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def __class_getitem__(cls, _: object) -> type[LauncherGroup]:
        """Return the class itself: torchrunx adds a type argument, which is not needed."""
        return cls

    def __post_init__(self) -> None:
        """Wait until every agent has connected."""
        deadline = time.monotonic() + self.agent_timeout
        with self.changed:
            while len(self.agents) < self.world_size - 1 and not self.is_aborted.is_set():
                self.changed.wait(ABORT_POLL_S)
                if time.monotonic() > deadline:
                    raise self._timeout_error(self.agents)
        if self.is_aborted.is_set():
            raise AgentFailedError

    def _timeout_error(self, ranks: Container[int]) -> AgentFailedError:
        """Return the error that names the agents that have not answered in time."""
        missing = [host for rank, host in enumerate(self.hosts, 1) if rank not in ranks]
        return AgentFailedError(f"no answer within {self.agent_timeout} s from torchrunx's agent on {listed(missing)}")

    @classmethod
    def admit(cls, peer: socket.socket) -> None:
        """Add the connection of an agent or a rank, which sends its name first."""
        cls.peers.append(peer)
        connection = Connection(os.dup(peer.fileno()))
        try:
            kind, number = connection.recv_bytes(MAX_NAME_BYTES).split()
        except (OSError, EOFError):
            return  # it has ended
        if kind == b"rank":
            cls.admit_rank(int(number), connection)
            return
        with cls.changed:
            cls.agents[int(number)] = connection
            cls.changed.notify()

    def _all_gather(self, obj: Any) -> list[Any]:
        """Receive an object from each agent, send all objects to all agents, and return them.

        The launcher's own object comes first, then those of the agents in order of rank.
        """
        try:
            # Receive the objects of the agents, in the order in which they arrive
            objects: dict[int, Any] = {0: obj}
            deadline = time.monotonic() + self.agent_timeout
            while missing := {connection: rank for rank, connection in self.agents.items() if rank not in objects}:
                ready = wait(list(missing), max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise self._timeout_error(objects)
                for connection in ready:
                    assert isinstance(connection, Connection)
                    objects[missing[connection]] = cloudpickle.loads(connection.recv_bytes())
            # Send all objects to all agents
            gathered = [objects[rank] for rank in range(self.world_size)]
            message = cloudpickle.dumps(gathered)
            for connection in self.agents.values():
                connection.send_bytes(message)
        except (OSError, EOFError) as error:
            raise AgentFailedError from error
        return gathered

    def shutdown(self) -> None:
        """Close the connections, and end the thread that accepts them."""
        shut_down(self.listener)
        for connection in self.agents.values():
            connection.close()
        for peer in self.peers:
            peer.close()


class AgentGroup(LauncherAgentGroup[Any]):
    """An agent's side: a connection to the launcher."""

    def __post_init__(self) -> None:
        """Connect to the launcher."""
        peer = socket.create_connection((self.launcher_hostname, self.launcher_port), self.agent_timeout)
        authenticate(peer, secret_of(os.environ), listens=False)
        self._launcher = Connection(peer.detach())
        self._launcher.send_bytes(b"agent %d" % self.rank)

    def _all_gather(self, obj: Any) -> list[Any]:
        """Return the objects of the launcher and of all agents, in order of rank."""
        try:
            self._launcher.send_bytes(cloudpickle.dumps(obj))
            if not self._launcher.poll(self.agent_timeout):
                raise AgentFailedError
            return cloudpickle.loads(self._launcher.recv_bytes())
        except (OSError, EOFError) as error:
            raise AgentFailedError from error

    def shutdown(self) -> None:
        """Close the connection."""
        self._launcher.close()
