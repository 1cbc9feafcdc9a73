"""Sums over the CPU ranks of one machine, through sockets and without gloo's thread switches."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence

import torch
from torch._C._distributed_c10d import Store

from mjlab_dist.distributed.exchange import exchange
from mjlab_dist.distributed.heartbeat import slices
from mjlab_dist.distributed.rank import LOOPBACK, in_words
from mjlab_dist.errors import LostRankError

# A rank that waits for data polls its sockets for this many seconds, and then sleeps until data arrives.
#
# Between polls, the rank yields its core to other processes. Sleeping at once would be slower: ranks of equal speed
# usually wait for less time than it takes to wake up a sleeping process.
SPIN_S = 0.005

# Length of a rank's token in bytes. The token is a secret that peers must send, because any local process can connect
# to the rank's port.
TOKEN_BYTES = 16

# Length, in bytes, of the first message to a peer. It consists of the peer's token and the sender's rank.
HELLO_BYTES = TOKEN_BYTES + 4

# Seconds after which a connection that has not sent its first message is closed
HELLO_TIMEOUT_S = 10

# Number of bytes that encode the size of a tensor; they are sent before the tensor
SIZE_BYTES = 8

# Maximum size of a small tensor, in bytes, if there are more than two ranks. Ranks send small tensors as a whole, and
# large tensors in parts. Two ranks send all tensors as a whole, because two exchanges of halves would take as many
# bytes.
MAX_WHOLE_BYTES = 64 * 1024


class LocalSum:
    """Sums tensors over ranks, with bitwise equal results on all ranks.

    - Small tensors, one exchange: every rank sends its tensor to all others and adds up all tensors in order of rank.
    - Large tensors, two exchanges: a reduce-scatter, in which rank i adds up part i, and an all-gather.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float) -> None:
        """Connect to every other rank, and wait until all ranks are connected."""
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        token = secrets.token_bytes(TOKEN_BYTES)
        with socket.create_server((LOOPBACK, 0), backlog=world_size) as server:
            # Exchange ports and tokens with all ranks
            peers = exchange(store, rank, world_size, "local_sum", (server.getsockname()[1], token.hex()))
            # Connect to lower ranks; higher ranks connect to this one
            connected = {other: _connect(other, peers[other], rank, timeout_s) for other in range(rank)}
            connected |= _accept(server, token, range(rank + 1, world_size), timeout_s)
        self._links = [_Link(other, connected[other]) for other in sorted(connected)]
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def sum_(self, values: torch.Tensor) -> None:
        """Replace a tensor with its sum over ranks. All ranks must call this method, with the same shape and dtype.

        Raises:
            LostRankError: If another rank has ended, sends nothing before the timeout, or sends a tensor of another
                size.
        """
        try:
            self._sum(values.view(-1))
        except LostRankError as error:
            error.sum_bytes = values.nbytes  # the launcher compares these sizes, to find the rank that skipped a sum
            raise

    def _sum(self, flat: torch.Tensor) -> None:
        # Whole tensors
        if self._world_size == 2 or flat.nbytes <= MAX_WHOLE_BYTES:
            self._add_up(flat, send=[flat] * self._world_size)
            return
        # Reduce-scatter, then all-gather
        parts = flat.tensor_split(self._world_size)
        own = parts[self._rank]
        self._add_up(own, send=parts)
        self._exchange(send=[own] * self._world_size, receive=parts)

    def close(self) -> None:
        """Close the connections."""
        for link in self._links:
            link.connection.close()

    def _add_up(self, own: torch.Tensor, send: Sequence[torch.Tensor]) -> None:
        """Add the tensors of the other ranks to ``own``, in place."""
        # Memory for one tensor per rank. It is reused: new memory would cause page faults in every sum.
        key = (own.numel(), own.dtype)
        if key not in self._buffers:
            self._buffers[key] = own.new_empty(self._world_size, own.numel())
        addends = self._buffers[key].unbind()
        addends[self._rank].copy_(own)
        self._exchange(send=send, receive=addends)
        torch.add(addends[0], addends[1], out=own)
        for addend in addends[2:]:
            own.add_(addend)

    def _exchange(self, send: Sequence[torch.Tensor], receive: Sequence[torch.Tensor]) -> None:
        """Send one tensor to each other rank and receive one from it; both lists are in order of rank."""
        for link in self._links:
            link.begin(send[link.rank], receive[link.rank])
        waiting = self._links
        asleep_at = time.monotonic() + SPIN_S
        while waiting:
            moved = sum(link.advance() for link in waiting)
            waiting = [link for link in waiting if link.events]
            if moved:
                asleep_at = time.monotonic() + SPIN_S
            elif time.monotonic() < asleep_at:
                os.sched_yield()
            else:
                # Sleep until a connection can send or receive
                poll = select.poll()
                for link in waiting:
                    poll.register(link.connection, link.events)
                if not any(poll.poll(wait_s * 1000) for wait_s in slices(self._timeout_s)):
                    raise _silent([link.rank for link in waiting], self._timeout_s)


class _Link:
    """Connection to another rank, with the bytes that remain to be sent and received.

    In each direction, a size is sent first, then a tensor. A size that this rank does not expect shows that a rank has
    skipped a sum. Without sizes, that rank's next tensor would be added to a different tensor of the other ranks.
    """

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.rank = rank
        self.connection = connection
        self._size = b""
        self._received_size = bytearray(SIZE_BYTES)
        self._unsent: list[memoryview] = []
        self._missing: list[memoryview] = []

    def begin(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self._size = received.nbytes.to_bytes(SIZE_BYTES, "big")
        self._unsent = [memoryview(sent.nbytes.to_bytes(SIZE_BYTES, "big")), _bytes(sent)]
        self._missing = [memoryview(self._received_size), _bytes(received)]

    @property
    def events(self) -> int:
        """Events of ``select.poll`` to wait for; 0 if nothing is left to transfer."""
        return (select.POLLOUT if self._unsent else 0) | (select.POLLIN if self._missing else 0)

    def advance(self) -> bool:
        """Send and receive as much as possible without blocking; return whether any data was transferred."""
        moved = self._transfer(self._unsent, self.connection.send)
        moved += self._transfer(self._missing, self.connection.recv_into)
        # Check the size of the peer's tensor as soon as the size has arrived
        if len(self._missing) < 2 and self._received_size != self._size:
            sent, expected = (int.from_bytes(size, "big") for size in (self._received_size, self._size))
            raise LostRankError(
                f"rank {self.rank} sent a tensor of {sent} bytes, but this rank expected {expected} bytes: one of the "
                "two ranks skipped a sum over ranks"
            )
        return moved > 0

    def _transfer(self, buffers: list[memoryview], transfer: Callable[[memoryview], int]) -> int:
        """Transfer all bytes possible without blocking, remove them from the buffers, and return their number."""
        total = 0
        while buffers:
            if buffers[0]:
                try:
                    moved = transfer(buffers[0])
                except BlockingIOError:
                    break
                except OSError as error:
                    raise LostRankError(f"rank {self.rank} has ended ({error.strerror})") from error
                if moved == 0:
                    raise LostRankError(f"rank {self.rank} has ended")
                total += moved
                buffers[0] = buffers[0][moved:]
            if not buffers[0]:
                del buffers[0]
        return total


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.detach().view(torch.uint8).numpy().data


def _silent(ranks: Sequence[int], timeout_s: float) -> LostRankError:
    return LostRankError(f"no data from {in_words(ranks)} for {timeout_s:g} s")


def _connect(other: int, peer: tuple[int, str], rank: int, timeout_s: float) -> socket.socket:
    """Connect to another rank, given its port and token."""
    port, token = peer
    try:
        connection = socket.create_connection((LOOPBACK, port), timeout=timeout_s)
        connection.sendall(bytes.fromhex(token) + rank.to_bytes(HELLO_BYTES - TOKEN_BYTES, "big"))
    except OSError as error:
        raise LostRankError(f"rank {other} has ended ({error.strerror or error})") from error
    return connection


def _accept(server: socket.socket, token: bytes, ranks: Sequence[int], timeout_s: float) -> dict[int, socket.socket]:
    """Accept the connections of other ranks, and return them by rank.

    Connections of processes that are not ranks are closed; ranks never wait for such a process.
    """
    deadline = time.monotonic() + timeout_s
    accepted: dict[int, socket.socket] = {}
    guests: list[_Guest] = []
    server.setblocking(False)
    try:
        while missing := [rank for rank in ranks if rank not in accepted]:
            # Wait for a new connection, or for data on an accepted connection
            now = time.monotonic()
            if now >= deadline:
                raise _silent(missing, timeout_s)
            until = min([deadline, *(guest.deadline for guest in guests)])
            poll = select.poll()
            for each in (server, *(guest.connection for guest in guests)):
                poll.register(each, select.POLLIN)
            poll.poll(max(0.0, until - now) * 1000)
            with contextlib.suppress(OSError):
                guests.append(_Guest(server.accept()[0]))
            # Check first messages that are complete or can no longer arrive: keep connections of ranks, close others
            for guest in [guest for guest in guests if guest.is_done()]:
                guests.remove(guest)
                rank = guest.rank(token)
                if rank in missing and rank not in accepted:
                    accepted[rank] = guest.connection
                else:
                    guest.connection.close()
    finally:
        for guest in guests:
            guest.connection.close()
    return accepted


class _Guest:
    """A connection whose first message is not complete."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.deadline = time.monotonic() + HELLO_TIMEOUT_S
        self._hello = b""

    def is_done(self) -> bool:
        """Receive without waiting; return True if the message is complete or late, or the connection has ended."""
        try:
            received = self.connection.recv(HELLO_BYTES - len(self._hello))
        except BlockingIOError:
            return time.monotonic() >= self.deadline
        except OSError:
            return True
        self._hello += received
        return not received or len(self._hello) == HELLO_BYTES

    def rank(self, token: bytes) -> int | None:
        """Return the peer's rank; None if it has not sent the token."""
        if len(self._hello) < HELLO_BYTES or not self._hello.startswith(token):
            return None
        return int.from_bytes(self._hello[TOKEN_BYTES:], "big")
