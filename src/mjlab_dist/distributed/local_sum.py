"""Sums over ranks that share a machine, through sockets of their own, without the thread switches that gloo makes for each."""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence

import torch
from torch._C._distributed_c10d import Store

from mjlab_dist.distributed.rank import LOOPBACK, in_words
from mjlab_dist.distributed.rank_info import exchange
from mjlab_dist.errors import LostRankError

SPIN_S = 0.005
"""Seconds without a byte after which a rank sleeps until one comes. Before, it asks again and again, and offers its core to others
in between: ranks that are in step wait less than it takes to wake up."""

TOKEN_BYTES = 16
"""Length of the secret by which a rank tells the others from whatever else connects to its port."""

HELLO_BYTES = TOKEN_BYTES + 4
"""Length of what a rank says first to another: that one's secret, and its own rank."""

HELLO_TIMEOUT_S = 10
"""Seconds within which it has to be said."""

SIZE_BYTES = 8
"""Length of the number that goes before every tensor."""

MAX_WHOLE_BYTES = 64 * 1024
"""Largest tensor that more than two ranks exchange whole. Two ranks always do: it is no more bytes than exchanging parts twice."""


class LocalSum:
    """Sum over ranks in the order of ranks, in one exchange of small tensors or two of large ones.

    Small tensors: every rank sends its tensor to every other, and all add up the same addends. Large tensors: a reduce-scatter and an
    all-gather, in which rank i adds up part i. All ranks hold the same bits either way.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float) -> None:
        """Connect to every other rank; waits for the slowest.

        Args:
            store: Where all ranks have met.
            rank: This rank.
            world_size: Number of ranks, all on this machine.
            timeout_s: Seconds to wait for another rank, here and in every sum.

        Raises:
            LostRankError: If another rank cannot be reached, or does not connect within the timeout.
        """
        self._rank = rank
        self._world_size = world_size
        self._timeout_s = timeout_s
        token = secrets.token_bytes(TOKEN_BYTES)
        with socket.create_server((LOOPBACK, 0), backlog=world_size) as server:
            told = exchange(store, rank, world_size, "local_sum", (server.getsockname()[1], token.hex()))
            connected = {other: _connect(other, told[other], rank, timeout_s) for other in range(rank)}
            server.settimeout(timeout_s)
            while missing := [other for other in range(rank + 1, world_size) if other not in connected]:
                try:
                    connected |= _accept(server, token)
                except TimeoutError as error:
                    raise _silent(missing, timeout_s) from error
        self._links = [_Link(other, connected[other]) for other in sorted(connected)]
        self._buffers: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def sum_(self, values: torch.Tensor) -> None:
        """Replace a tensor by its sum over ranks; called by all of them, with tensors of one shape and type.

        Args:
            values: On the CPU, contiguous.

        Raises:
            LostRankError: If another rank has ended, has said nothing for the timeout, or adds up a tensor of another size.
        """
        flat = values.view(-1)
        if self._world_size == 2 or flat.nbytes <= MAX_WHOLE_BYTES:
            self._add_up(flat, send=[flat] * self._world_size)
            return
        parts = flat.tensor_split(self._world_size)
        own = parts[self._rank]
        self._add_up(own, send=parts)
        self._trade(send=[own] * self._world_size, receive=parts)

    def close(self) -> None:
        """Close the connections."""
        for link in self._links:
            link.connection.close()

    def _add_up(self, own: torch.Tensor, send: Sequence[torch.Tensor]) -> None:
        """Replace a tensor by its sum with what the other ranks send in place of it; ``send`` is what they get, by ranks."""
        addends = self._buffer(own)
        addends[self._rank].copy_(own)
        self._trade(send=send, receive=addends)
        torch.add(addends[0], addends[1], out=own)
        for addend in addends[2:]:
            own.add_(addend)

    def _buffer(self, like: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return memory for one tensor per rank; kept, because fresh memory of this size costs page faults in every sum."""
        key = (like.numel(), like.dtype)
        if key not in self._buffers:
            self._buffers[key] = like.new_empty(self._world_size, like.numel())
        return self._buffers[key].unbind()

    def _trade(self, send: Sequence[torch.Tensor], receive: Sequence[torch.Tensor]) -> None:
        """Send every other rank its tensor of a list by ranks, and receive one from each into those of another."""
        for link in self._links:
            link.begin(send[link.rank], receive[link.rank])
        waiting = self._links
        asleep_at = time.monotonic() + SPIN_S
        while waiting:
            moved = sum(link.go_on() for link in waiting)
            waiting = [link for link in waiting if link.events]
            if moved:
                asleep_at = time.monotonic() + SPIN_S
            elif time.monotonic() < asleep_at:
                os.sched_yield()
            else:
                self._sleep(waiting)

    def _sleep(self, waiting: Sequence[_Link]) -> None:
        """Sleep until a connection can go on."""
        poll = select.poll()
        for link in waiting:
            poll.register(link.connection, link.events)
        if not poll.poll(self._timeout_s * 1000):
            raise _silent([link.rank for link in waiting], self._timeout_s)


class _Link:
    """The connection to another rank, and what is still to pass through it: each way a tensor, and its size before it.

    A rank that left out a sum would add numbers of one kind to those of another from there on; their sizes tell.
    """

    def __init__(self, rank: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.rank = rank
        self.connection = connection
        self._size = b""
        self._told_size = bytearray(SIZE_BYTES)
        self._unsent: list[memoryview] = []
        self._missing: list[memoryview] = []

    def begin(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        self._size = received.nbytes.to_bytes(SIZE_BYTES, "big")
        self._unsent = [memoryview(sent.nbytes.to_bytes(SIZE_BYTES, "big")), _bytes(sent)]
        self._missing = [memoryview(self._told_size), _bytes(received)]

    @property
    def events(self) -> int:
        """What has to happen for it to go on, in poll's words; 0 where nothing is left."""
        return (select.POLLOUT if self._unsent else 0) | (select.POLLIN if self._missing else 0)

    def go_on(self) -> bool:
        """Send and receive what can be at once; whether that was anything."""
        moved = self._pass(self._unsent, self.connection.send) + self._pass(self._missing, self.connection.recv_into)
        if len(self._missing) < 2 and self._told_size != self._size:
            told, expected = (int.from_bytes(size, "big") for size in (self._told_size, self._size))
            raise LostRankError(
                f"rank {self.rank} sends {told} bytes to a sum that takes {expected}: it left out another"
            )
        return moved > 0

    def _pass(self, buffers: list[memoryview], transfer: Callable[[memoryview], int]) -> int:
        """Transfer what can be at once, and drop it from the buffers; its number of bytes."""
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
    return LostRankError(f"nothing came from {in_words(ranks)} for {timeout_s:g} s")


def _connect(other: int, told: tuple[int, str], rank: int, timeout_s: float) -> socket.socket:
    """Connect to another rank, which has told its port and token."""
    port, token = told
    try:
        connection = socket.create_connection((LOOPBACK, port), timeout=timeout_s)
        connection.sendall(bytes.fromhex(token) + rank.to_bytes(HELLO_BYTES - TOKEN_BYTES, "big"))
    except OSError as error:
        raise LostRankError(f"rank {other} has ended ({error.strerror or error})") from error
    return connection


def _accept(server: socket.socket, token: bytes) -> dict[int, socket.socket]:
    """Whoever connects next, by its rank; nobody, if it does not know the token."""
    connection, _ = server.accept()
    connection.settimeout(HELLO_TIMEOUT_S)
    hello = b""
    try:
        while len(hello) < HELLO_BYTES and (got := connection.recv(HELLO_BYTES - len(hello))):
            hello += got
    except OSError:
        pass
    if not hello.startswith(token) or len(hello) < HELLO_BYTES:
        connection.close()
        return {}
    return {int.from_bytes(hello[TOKEN_BYTES:], "big"): connection}
