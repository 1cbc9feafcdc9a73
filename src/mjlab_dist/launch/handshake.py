"""Proof that both ends of a connection belong to one launch (start of ranks). Imports the standard library only."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

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
