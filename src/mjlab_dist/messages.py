"""Events of a run, and the functions of this process that receive them.

They are not sent over :mod:`logging`, because its settings belong to the user's code. A rank in a process of its own
passes them on to its launcher (:mod:`mjlab_dist.launch.channel`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

Kind = Literal[
    "status",
    "warning",
    "debug",
    "compiling",
    "recording",
    "length",
    "iteration",
    "last_video",
    "joined",
    "step",
    "beat",
    "stopping",
    "result",
    "failed",
]

# Plain data: the key kind, and the keys of that kind, which emit lists
Event = dict[str, Any]

# Function that receives events; called from any thread
Listener = Callable[[Event], None]

# Receive the events of this process. A list of the process, because any thread and any part of it may send events.
_listeners: list[Listener] = []


def emit(kind: Kind, **data: Any) -> None:
    """Send an event.

    Events for the user:

    - ``status``, ``warning``: a line ``text`` to print.
    - ``debug``: a line ``text`` to print with ``--verbose``.
    - ``compiling``: ``done`` of ``total`` modules of physics kernels are compiled. Sent only if some must be compiled.
      In the first event, ``done`` is 0.
    - ``recording``: ``done`` of ``total`` frames of a video are drawn; fewer than ``total`` if episodes end early.
    - ``length``: the run's total number of iterations, ``max_iterations``. Sent once, before the first iteration.
    - ``iteration``: a ``row`` of metrics.
    - ``last_video``: training has ended, and only its last video is missing; a line ``text`` to print.

    Events for the launcher:

    - ``joined``: a ``rank`` has started, with its ``pid`` and ``host``.
    - ``step``: a ``rank`` has begun a ``step`` of its start that must end in time, or builds its envs again; None if it
      waits for other ranks, or its start has ended.
    - ``stopping``: a ``rank`` has received the request to stop.
    - ``beat``: a ``rank``, and the number of iterations that it has done, ``iteration``.
    - ``result``: the ``result`` of a ``rank``.
    - ``failed``: the ``report`` of a rank that failed.
    """
    send({"kind": kind, **data})


def send(event: Event) -> None:
    """Send an event of another process to the listeners of this process."""
    for listen in tuple(_listeners):
        listen(event)


@contextlib.contextmanager
def listening(listen: Listener) -> Iterator[None]:
    """Pass the events of this process to a listener until the context ends."""
    _listeners.append(listen)
    try:
        yield
    finally:
        _listeners.remove(listen)
