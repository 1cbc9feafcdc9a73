"""What ranks tell the console, as log records: on one rank the console handles them, else torchrunx carries them to it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

Kind = Literal["status", "warning", "debug", "compiling", "length", "iteration", "joined", "beat", "result", "failed"]

NAME = "mjlab_dist"
"""Logger under which everything of this package logs."""

Event = dict[str, Any]
"""What a rank tells, as :func:`emit` lists it: ``kind``, and with it what the kind needs. Plain data."""

Listener = Callable[[Event], None]
"""Takes events, from any thread."""

_LEVELS = {"warning": logging.WARNING} | dict.fromkeys(("status", "compiling", "length", "iteration"), logging.INFO)

_logger = logging.getLogger(f"{NAME}.events")


def emit(kind: Kind, **data: Any) -> None:
    """Tell the console something.

    Args:
        kind: ``status`` or ``warning``: a line to show, as ``text``; ``debug``: one that ``--verbose`` shows. ``compiling``: ``done`` of ``total`` modules of physics
            kernels are compiled; reported only if any was missing, first with 0 done. ``length``: iterations that the run has in all, as
            ``max_iterations``; told once, before the first. ``iteration``: a row of metrics, as ``row``. The others are for the
            launcher and not for people. ``joined``: a ``rank`` with its ``pid`` and ``host``. ``beat``: the ``iteration`` that a
            ``rank`` has done. ``result``: what a ``rank`` returned, as ``result``. ``failed``: a rank's ``report``.
        data: What the kind needs; plain data.
    """
    level = _LEVELS.get(kind, logging.DEBUG)
    _logger.log(level, "%s %s", kind, data, extra={"event": {"kind": kind, **data}})


class EventHandler(logging.Handler):
    """Hands the events that log records carry to a listener; other records it ignores."""

    def __init__(self, listen: Listener) -> None:
        """Attach nothing yet.

        Args:
            listen: Takes the events.
        """
        super().__init__()
        self._listen = listen

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on the record's event, if it has one."""
        event: Event | None = getattr(record, "event", None)
        if event is None:
            return
        # torchrunx marks the records that come from a rank.
        rank = getattr(record, "local_rank", None)
        if rank is not None and event["kind"] == "warning":
            event = {**event, "text": f"rank {rank}: {event['text']}"}
        self._listen(event)


@contextlib.contextmanager
def listening(listen: Listener) -> Iterator[None]:
    """Hear the rank in this process, until the context is left.

    Args:
        listen: Takes its events.
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
