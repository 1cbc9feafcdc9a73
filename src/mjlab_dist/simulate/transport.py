"""Connections between the launcher and a rank, and the memory in which they exchange actions and results.

A connection carries pickled commands and replies. Tensors are not pickled: a rank of the launcher's machine shares
memory with the launcher, and a rank of another machine receives and sends one block of bytes per step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Protocol

import torch

from mjlab_dist.simulate.job import Layout, Tensors
from mjlab_dist.simulate.shared import Block, attach, copy_into, num_bytes, place


class Rows:
    """The rows of a rank's envs, in tensors over all envs. Launcher and rank each have an object for these rows.

    These rows are in shared memory: nothing is sent, because the other process reads the same memory.
    """

    def __init__(self, tensors: Tensors) -> None:
        """Use the rows in this process."""
        self.tensors = tensors

    def send(self) -> None:
        """Send the rows to the other process."""

    def receive(self) -> None:
        """Wait for the rows that the other process sends.

        Raises:
            EOFError: If the other process has closed the connection.
            OSError: If the connection fails, or if it has a timeout and nothing arrives in time.
        """


class Transport(Protocol):
    """A connection between the launcher and a rank.

    For the same tensors, the launcher calls :meth:`offer`, and the rank calls :meth:`obtain`.
    """

    # Connection for commands and replies
    connection: Connection

    def __init__(self, connection: Connection) -> None:
        """Use a connection."""
        self.connection = connection

    def offer(self, block: Block, rows: range) -> Rows:
        """Give the rank its rows of tensors."""
        ...

    def obtain(self, layout: Layout, rows: range) -> Rows:
        """Return the rows that the launcher offers."""
        ...


class SharedMemory(Transport):
    """Connection of a rank on the launcher's machine: a Unix socket. Launcher and rank use the same memory."""

    def offer(self, block: Block, rows: range) -> Rows:
        send_handle(self.connection, block.descriptor, os.getpid())
        return Rows(_part(block.tensors, block.layout, rows))

    def obtain(self, layout: Layout, rows: range) -> Rows:
        descriptor = recv_handle(self.connection)
        try:
            return Rows(_part(attach(descriptor, layout), layout, rows))
        finally:
            os.close(descriptor)


class Network(Transport):
    """Connection of a rank on another machine: a TCP socket. Launcher and rank each have their own memory."""

    def offer(self, block: Block, rows: range) -> Rows:
        return _CopiedRows(_SentRows(self.connection, block.layout, rows), _part(block.tensors, block.layout, rows))

    def obtain(self, layout: Layout, rows: range) -> Rows:
        return _SentRows(self.connection, layout, rows)


class _SentRows(Rows):
    """Rows in one piece of memory, which is sent without a conversion."""

    def __init__(self, connection: Connection, layout: Layout, rows: range) -> None:
        own = {name: entry.with_envs(len(rows)) for name, entry in layout.items()}
        self._connection = connection
        self._memory = memoryview(bytearray(num_bytes(own)))
        super().__init__(place(self._memory, own))

    def send(self) -> None:
        left = self._memory
        while left:
            left = left[os.write(self._connection.fileno(), left) :]

    def receive(self) -> None:
        left = self._memory
        while left:
            size = os.readv(self._connection.fileno(), [left])
            if not size:
                raise EOFError
            left = left[size:]


class _CopiedRows(Rows):
    """Rows of tensors over all envs, which are copied to and from the memory that is sent."""

    def __init__(self, sent: _SentRows, tensors: Tensors) -> None:
        super().__init__(tensors)
        self._sent = sent

    def send(self) -> None:
        copy_into(self._sent.tensors, self.tensors, "cpu")
        self._sent.send()

    def receive(self) -> None:
        self._sent.receive()
        copy_into(self.tensors, self._sent.tensors, "cpu")


def _part(tensors: Mapping[str, torch.Tensor], layout: Layout, rows: range) -> Tensors:
    """Return the rows of some envs."""
    return {name: whole.narrow(layout[name].env_dim, rows.start, len(rows)) for name, whole in tensors.items()}
