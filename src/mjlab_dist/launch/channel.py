"""Connections between a rank and its launcher, and their first use: events and requests. Imports no torch.

Both ends of a connection prove that they belong to one launch (start of ranks). User code in a rank may change the
settings of logging, the standard streams and the signal handlers, so none of them carries events or requests.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Literal

from mjlab_dist.messages import Event

# Variable with the secret of a launch in hexadecimal. Other users cannot read the environment of a process.
SECRET = "MJLAB_DIST_SECRET"  # noqa: S105 (the name of a variable)

# Length, in bytes, of the secret and of the random number that each end sends
SECRET_BYTES = 32

# Seconds that a connecting process has for the proof
TIMEOUT_S = 10.0

# Seconds that the listener has for the proof: more than a connecting process, because the listener may be busy
PATIENCE_S = 60.0

# Maximum number of connections per listener that have not sent a valid proof yet. Further connections wait, so that
# other programs cannot use up the descriptors and threads of the launch.
MAX_UNPROVEN = 64

# Variable with the address and the port where ranks connect to the launcher, as address:port
LAUNCHER = "MJLAB_DIST_LAUNCHER"

# Maximum length of the first message: what connects, and the rank
MAX_NAME_BYTES = 16

# Seconds to wait for the last data of a process that has ended
SETTLED_S = 0.5

# Maximum length of an event, in bytes
MAX_BYTES = 64 * 1024**2

# stop: stop training after the current iteration. report: report the stack, and end, because the rank hangs.
Request = Literal["stop", "report"]


class NotOursError(OSError):
    """The other end does not know the secret."""


def new_secret() -> str:
    """Return a secret for a launch, in hexadecimal."""
    return secrets.token_hex(SECRET_BYTES)


def secret_of(environ: Mapping[str, str]) -> bytes:
    """Return the secret of the launch that started this process."""
    return bytes.fromhex(environ[SECRET])


def authenticate(connection: socket.socket, secret: bytes, *, listens: bool) -> None:
    """Prove to the other end that this process knows the secret, and verify the other end's proof.

    The secret itself is not sent, and a proof is valid only for its connection.

    Raises:
        NotOursError: If the other end does not know the secret.
        OSError: If the connection fails, or the other end does not answer in time.
    """
    timeout_s = TIMEOUT_S if listens else PATIENCE_S
    deadline = time.monotonic() + timeout_s
    connection.settimeout(timeout_s)
    # Exchange random numbers
    own = secrets.token_bytes(SECRET_BYTES)
    connection.sendall(own)
    other = _receive(connection, SECRET_BYTES, deadline)
    # Exchange proofs. Each proof names its sender, so an attacker cannot send a proof back to the end that made it.
    numbers = own + other if listens else other + own
    proofs = [hmac.digest(secret, role + numbers, "sha256") for role in (b"caller", b"listener")]
    connection.sendall(proofs[listens])
    if not hmac.compare_digest(_receive(connection, len(proofs[0]), deadline), proofs[not listens]):
        raise NotOursError("the other end does not know the secret of the launch")
    connection.settimeout(None)


def accept_proven(listener: socket.socket, secret: bytes, admit: Callable[[socket.socket], None]) -> None:
    """Accept connections until the listener is shut down. A peer that does not answer does not delay others."""
    unproven = threading.Semaphore(MAX_UNPROVEN)

    def prove(peer: socket.socket) -> None:
        try:
            authenticate(peer, secret, listens=True)
        except OSError:
            peer.close()
            return
        finally:
            unproven.release()
        admit(peer)

    while True:
        unproven.acquire()
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=prove, args=(peer,), name="peer", daemon=True).start()


def shut_down(listener: socket.socket) -> None:
    """Close a listener, and end the thread that accepts its connections."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # unlike close, this wakes a thread that waits in accept
    listener.close()


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        # The other end may send single bytes, so each read may take only the remaining time
        connection.settimeout(max(1e-3, deadline - time.monotonic()))
        part = connection.recv(size - len(received))
        if not part:
            raise NotOursError("the other end closed the connection")
        if time.monotonic() > deadline:
            raise TimeoutError("the other end took too long for its proof")
        received += part
    return received


class Channel:
    """A rank's end."""

    def __init__(self, rank: int, receive: Callable[[Request], None]) -> None:
        """Connect to the launcher."""
        self._connection = connect("events", rank)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._receive = receive
        # If the launcher is stopped and the connection is full, only the thread that sends waits
        self._sender = threading.Thread(target=self._send, name="events", daemon=True)
        self._sender.start()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def listen(self, event: Event) -> None:
        """Send an event. This does not wait, and raises no error if the launcher has ended."""
        self._events.put(event)

    def flush(self, timeout_s: float | None) -> None:
        """Wait until all events are sent, or the connection has ended. No further event can be sent."""
        self._events.put(None)
        self._sender.join(timeout_s)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (event := self._events.get()) is not None:
                self._connection.send_bytes(json.dumps(event, default=str).encode())

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._receive(json.loads(self._connection.recv_bytes(MAX_BYTES)))


class Channels:
    """The launcher's ends. Events and output are read in the thread that accepted their connection."""

    def __init__(self, receive: Callable[[Event], None]) -> None:
        self._receive = receive
        self._connections: dict[int, Connection] = {}

    @contextlib.contextmanager
    def accepting(
        self,
        listener: socket.socket,
        secret: bytes,
        copy_output: Callable[[int, Connection], None],
        take: Callable[[int, socket.socket], None] | None = None,
    ) -> Iterator[None]:
        """Accept connections; when the context ends, wait briefly for those whose rank has ended, and end all others.

        Args:
            listener: Socket that ranks connect to.
            secret: Secret of the launch, which each rank must know.
            copy_output: Reads what a rank prints, until the connection ends.
            take: Takes over the connection of a rank for commands, if ranks open one.
        """
        read = {b"events": self.read, b"output": copy_output}
        admitted: list[tuple[socket.socket, threading.Thread]] = []

        def admit(peer: socket.socket) -> None:
            admitted.append((peer, threading.current_thread()))
            with contextlib.suppress(OSError, EOFError), peer, Connection(os.dup(peer.fileno())) as connection:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                kind, rank = connection.recv_bytes(MAX_NAME_BYTES).split()
                if kind == b"commands":
                    assert take is not None
                    take(int(rank), peer)
                else:
                    read[kind](int(rank), connection)

        threading.Thread(target=accept_proven, args=(listener, secret, admit), name="ranks", daemon=True).start()
        try:
            yield
        finally:
            shut_down(listener)
            deadline = time.monotonic() + SETTLED_S
            for peer, reader in admitted:
                reader.join(max(0.0, deadline - time.monotonic()))
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)

    def read(self, rank: int, connection: Connection) -> None:
        """Read the events of a rank until its connection ends."""
        self._connections[rank] = connection
        with contextlib.suppress(OSError, EOFError):
            while True:
                data = connection.recv_bytes(MAX_BYTES)
                try:
                    event = json.loads(data)
                    if event["kind"] == "warning":
                        event["text"] = f"rank {rank}: {event['text']}"
                    self._receive(event)
                except Exception:  # otherwise a rank whose events are not read would seem to hang
                    logging.getLogger(__name__).exception("an event of rank %d was dropped: %r", rank, data[:1000])

    def send(self, rank: int, request: Request) -> None:
        """Send a request to a rank; do nothing if the rank is not connected."""
        if rank in self._connections:
            with contextlib.suppress(OSError):
                self._connections[rank].send_bytes(json.dumps(request).encode())


def address_of(listener: socket.socket) -> str:
    """Return the address of a listener, as :func:`connect` reads it."""
    address, port = listener.getsockname()[:2]
    return f"{address}:{port}"


def connect(kind: Literal["events", "output", "commands"], rank: int) -> Connection:
    """Connect to the launcher, prove that this process belongs to the launch, and say what the connection is for."""
    address, _, port = os.environ[LAUNCHER].rpartition(":")
    with socket.create_connection((address, int(port)), PATIENCE_S) as peer:
        # Send each message at once; by default, TCP delays a small one until earlier ones are acknowledged
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        authenticate(peer, secret_of(os.environ), listens=False)
        connection = Connection(peer.detach())
    connection.send_bytes(f"{kind} {rank}".encode())
    return connection
