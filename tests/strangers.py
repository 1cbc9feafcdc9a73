"""Processes that connect to a listener of a launch without its secret."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator, Sequence

from mjlab_dist.launch.channel import MAX_UNPROVEN

LEAVING = 8
"""Number of connections that are closed first, so that the listener serves others that wait."""


@contextlib.contextmanager
def silent_strangers(address: tuple[str, int], wait_for: Callable[[Callable[[], bool]], None]) -> Iterator[None]:
    """Open twice as many connections as the listener may serve at a time, and check that half of them are served.

    Args:
        address: Host and port of the listener.
        wait_for: Waits until a condition holds, or fails.
    """
    with contextlib.ExitStack() as connected:
        strangers = [
            connected.enter_context(socket.create_connection(address, timeout=None)) for _ in range(2 * MAX_UNPROVEN)
        ]
        wait_for(lambda: num_served(strangers) == MAX_UNPROVEN)
        for stranger in strangers[:LEAVING]:
            stranger.close()
        wait_for(lambda: num_served(strangers[LEAVING:]) == MAX_UNPROVEN)
        yield


def num_served(strangers: Sequence[socket.socket]) -> int:
    """Return how many connections the listener serves: those to which it has sent a random number."""
    return len(select.select(strangers, [], [], 0)[0])
