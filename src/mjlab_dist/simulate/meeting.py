"""Sockets of the launcher to which ranks connect: a Unix socket for ranks of its machine, a TCP port for others."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from mjlab_dist.launch.handshake import PATIENCE_S, accept_proven, authenticate, shut_down
from mjlab_dist.launch.hosts import own_address
from mjlab_dist.launch.preparation import listen_in_range
from mjlab_dist.simulate.transport import Network, SharedMemory, Transport

# Name of the Unix socket, in the run directory
SOCKET = "make"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Addresses to which the ranks of a launch connect. They contain no secret, so they may be sent to the ranks."""

    # Number of ranks on the launcher's machine. These have the lowest rank numbers.
    num_own: int
    # Directory of the Unix socket; only this user can open the directory
    directory: Path
    # Address and port for the ranks of other machines; None if there are no other machines
    address: tuple[str, int] | None

    def connect(self, rank: int, secret: bytes) -> Transport:
        """Connect a rank to the launcher."""
        if rank < self.num_own or self.address is None:
            peer = socket.socket(socket.AF_UNIX)
            with _short_path(self.directory) as path:
                peer.connect(path)
            authenticate(peer, secret, listens=False)
            return SharedMemory(Connection(peer.detach()))
        peer = socket.create_connection(self.address, PATIENCE_S)
        authenticate(peer, secret, listens=False)
        _send_at_once(peer)
        return Network(Connection(peer.detach()))


@contextlib.contextmanager
def open_meeting(
    directory: Path,
    hosts: Sequence[str],
    num_own: int,
    *,
    port_range: tuple[int, int] | None,
    secret: bytes,
    timeout_s: float,
) -> Iterator[tuple[Meeting, queue.SimpleQueue[Transport]]]:
    """Accept the connections of ranks, until the context ends.

    Yields:
        The addresses for the ranks, and a queue to which each new connection is added.
    """
    arrived: queue.SimpleQueue[Transport] = queue.SimpleQueue()
    limit = struct.pack("ll", max(1, round(timeout_s)), 0)

    def admit(peer: socket.socket) -> None:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            peer.setsockopt(socket.SOL_SOCKET, option, limit)
        is_own = peer.family == socket.AF_UNIX
        if not is_own:
            _send_at_once(peer)
        connection = Connection(peer.detach())
        arrived.put(SharedMemory(connection) if is_own else Network(connection))

    with contextlib.ExitStack() as stack:

        def accept(listener: socket.socket) -> None:
            """Accept connections in a thread until the context ends."""
            threading.Thread(target=accept_proven, args=(listener, secret, admit), name="meeting", daemon=True).start()
            stack.callback(shut_down, listener)

        own = socket.socket(socket.AF_UNIX)
        with _short_path(directory) as path:
            own.bind(path)
        own.listen()
        accept(own)
        address = None
        if len(hosts) > 1:
            others = listen_in_range(own_address(hosts), port_range)
            accept(others)
            address = others.getsockname()[:2]
        yield Meeting(num_own=num_own, directory=directory, address=address), arrived


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """Yield a short path of the Unix socket, because paths of sockets are limited to 107 bytes."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def _send_at_once(peer: socket.socket) -> None:
    """Send each message at once; by default, TCP delays a small message until earlier messages have arrived."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
