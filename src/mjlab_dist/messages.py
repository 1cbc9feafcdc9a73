"""Events that ranks send to the console, as log records.

With one rank, the console handles the records in the same process. With several ranks, torchrunx forwards the records.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

Kind = Literal[
    "status",
    "warning",
    "debug",
    "compiling",
    "length",
    "iteration",
    "last_video",
    "joined",
    "beat",
    "result",
    "failed",
]

NAME = "mjlab_dist"
"""Parent of all loggers of this package."""

Event = dict[str, Any]
"""Plain data: the key ``kind``, and the keys of that kind, which :func:`emit` lists."""

Listener = Callable[[Event], None]
"""Function that receives events; called from any thread."""

_LEVELS = {"warning": logging.WARNING} | dict.fromkeys(
    ("status", "compiling", "length", "iteration", "last_video"), logging.INFO
)

_logger = logging.getLogger(f"{NAME}.events")


def emit(kind: Kind, **data: Any) -> None:
    """Send an event.

    Events for the user:

    - ``status``, ``warning``: a line ``text`` to print.
    - ``debug``: a line ``text`` to print with ``--verbose``.
    - ``compiling``: ``done`` of ``total`` modules of physics kernels are compiled. Sent only if some must be compiled.
      In the first event, ``done`` is 0.
    - ``length``: the run's total number of iterations, ``max_iterations``. Sent once, before the first iteration.
    - ``iteration``: a ``row`` of metrics.
    - ``last_video``: training has ended, and only its last video is missing; a line ``text`` to print.

    Events for the launcher:

    - ``joined``: a ``rank`` has started, with its ``pid`` and ``host``.
    - ``beat``: a ``rank``, and the number of iterations that it has done, ``iteration``.
    - ``result``: the ``result`` of a ``rank``.
    - ``failed``: the ``report`` of a rank that failed.

    Args:
        kind: Kind of event.
        data: Values that the kind requires; plain data.
    """
    level = _LEVELS.get(kind, logging.DEBUG)
    _logger.log(level, "%s %s", kind, data, extra={"event": {"kind": kind, **data}})


class EventHandler(logging.Handler):
    """Log handler that passes the events of log records to a listener, and ignores other records."""

    def __init__(self, listen: Listener) -> None:
        """Create the handler.

        Args:
            listen: Receives the events.
        """
        super().__init__()
        self._listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record's event to the listener, if it has one."""
        event: Event | None = getattr(record, "event", None)
        if event is None:
            return
        # torchrunx adds the rank to records that it forwards.
        rank = getattr(record, "local_rank", None)
        if rank is not None and event["kind"] == "warning":
            event = {**event, "text": f"rank {rank}: {event['text']}"}
        self._listen(event)


@contextlib.contextmanager
def listening(listen: Listener) -> Iterator[None]:
    """Pass the events of this process to a listener until the context ends.

    Args:
        listen: Receives the events.
    """
    logger = logging.getLogger(NAME)
    handler, level = EventHandler(listen), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
