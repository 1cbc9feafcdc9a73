"""The files of a Weights & Biases run, read as `wandb sync` reads them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK = 32768
"""Size of a block in bytes. No chunk crosses the end of a block."""


def logged_steps(file: Path) -> list[int]:
    """Return the steps of all rows in a .wandb file."""
    return [row.step.num for row in records_of(file, "history")]


def records_of(file: Path, kind: str) -> list[Any]:
    """Return all records of a kind, such as ``run`` or ``artifact``, in a .wandb file."""
    found: list[Any] = []
    for data in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record()  # pyright: ignore[reportAttributeAccessIssue] (made at import)
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == kind:
            found.append(getattr(record, kind))
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file in LevelDB's log format, after the file's header of 7 bytes.

    A record consists of chunks. Each chunk has a checksum, a length, a kind and data.
    """
    position, record = 7, b""
    while position + 7 <= len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in {1, 4}:  # a whole record, or the last chunk of one
            yield record
            record = b""
