"""What ranks tell the console, as log records: on one rank the console handles them, else torchrunx carries them to it."""

from __future__ import annotations

import logging
from typing import Any, Literal

Kind = Literal["status", "warning", "iteration"]

NAME = "mjlab_dist"
"""Logger under which everything of this package logs."""

_logger = logging.getLogger(f"{NAME}.events")


def emit(kind: Kind, **data: Any) -> None:
    """Tell the console something.

    Args:
        kind: ``status`` or ``warning``: a line to show, as ``text``. ``iteration``: a row of metrics, as ``row``.
        data: What the kind needs; plain data.
    """
    level = logging.WARNING if kind == "warning" else logging.INFO
    _logger.log(level, "%s %s", kind, data, extra={"event": {"kind": kind, **data}})
