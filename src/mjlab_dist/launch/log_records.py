"""Log records that torchrunx sends over a socket, read as plain data. Imports no torch."""

from __future__ import annotations

import io
import logging
import pickle
from typing import Any, Never

from mjlab_dist.launch.hosts import HERE


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler for containers, text and numbers only."""

    def find_class(self, module: str, name: str) -> Never:
        raise pickle.UnpicklingError(f"a log record must not contain a {module}.{name}")


def plain_record(data: bytes) -> dict[str, Any]:
    """Read a log record that logging's SocketHandler wrote, without running code from the pickle.

    Args:
        data: A pickle.

    Returns:
        The record's fields; if the pickle contains anything else, the fields of a warning for the agent's log.
    """
    try:
        record = _PlainUnpickler(io.BytesIO(data)).load()
        known = isinstance(record, dict) and {"hostname", "local_rank", "name", "msg", "levelno"} <= record.keys()
        reason = "" if known else "required fields are missing"
    except Exception as error:  # noqa: BLE001 (a damaged pickle raises many types of errors)
        record, reason = {}, str(error)
    if reason:
        record = {"name": "root", "hostname": HERE, "local_rank": None, "levelno": logging.WARNING}
        record |= {"levelname": "WARNING", "msg": f"a log record was rejected: {reason}"}
    return record
