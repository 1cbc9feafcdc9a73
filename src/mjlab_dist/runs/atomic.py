"""Files that are replaced atomically. Imports the standard library only."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write a file. At any time, even after a power failure, the file has either the old contents or the new ones."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # "x" follows no link that somebody else may have put there
            file.write(contents.encode() if isinstance(contents, str) else contents)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # also Ctrl-C
        temporary.unlink(missing_ok=True)
        raise
