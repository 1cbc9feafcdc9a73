"""Files of a run, in its directory or in a pack. Imports the standard library only."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mjlab_dist.config.serialization import MAX_BITS
from mjlab_dist.errors import DiskFullError, UserError
from mjlab_dist.runs.pack_file import has_part, is_pack, read_manifest, read_part

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def readable(checkpoint: Path) -> Path:
    """Return a checkpoint, after a check that takes a millisecond. Reading a checkpoint takes seconds of imports."""
    if not is_pack(checkpoint) and (problem := problem_of(checkpoint)):
        raise UserError(f"checkpoint {checkpoint}: cannot be read ({problem}); choose another one")
    return checkpoint


def problem_of(checkpoint: Path) -> str:
    """Return why a file cannot be read as a checkpoint; empty if there is no problem."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            # The part with the names of all entries; the other parts are the numbers of tensors
            names = b"".join(archive.read(part) for part in archive.namelist() if part.endswith("data.pkl"))
    except OSError as error:
        return error.strerror or str(error)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error) as error:
        return str(error) if checkpoint.read_bytes()[:2] == b"PK" else "it does not begin like a file of torch.save"
    if b"actor_state_dict" in names:
        return ""
    return "rsl_rl below version 5 wrote it" if b"model_state_dict" in names else "it has no actor_state_dict"


def run_of(checkpoint: Path) -> Path:
    """Return the run directory of a checkpoint, or the pack itself if the path is a pack."""
    return checkpoint if is_pack(checkpoint) else checkpoint.resolve().parent.parent


def checkpoint_name(checkpoint: Path) -> str:
    """Return the name of a checkpoint, such as model_300. For a pack, return the name of the checkpoint in the pack."""
    return read_manifest(checkpoint)["checkpoint"] if is_pack(checkpoint) else checkpoint.resolve().stem


def has_file(run: Path, name: str) -> bool:
    """Return whether a run directory or a pack has a file."""
    return has_part(run, name) if run.is_file() else (run / name).is_file()


def read_file(run: Path, name: str) -> bytes:
    """Return a file of a run directory or a pack."""
    if run.is_file():
        return read_part(run, name)
    with open_file(run / name) as file:
        return file.read()


def open_file(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file for reading. Unlike ``open``, this does not wait for a writer if the path is a FIFO."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "is not a regular file", str(path))


def by_column(rows: Sequence[dict[str, Any]]) -> dict[str, NDArray[np.float64]]:
    """Return all columns that occur in any row, (rows,) each; NaN where a row has no value."""
    import numpy as np  # not needed to print help

    columns = dict.fromkeys(name for row in rows for name in row)
    # NumPy converts None to NaN.
    return {name: np.array([row.get(name) for row in rows], dtype=np.float64) for name in columns}


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return a row of metrics: numbers by column, and None for missing values. Return None for any other line."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("iteration")) is not int or row["iteration"] < 0:
        return None
    is_plain = all(
        value is None or type(value) is float or (type(value) is int and value.bit_length() < MAX_BITS)
        for value in row.values()
    )
    return row if is_plain else None


def refuse_links(flag: str, run_dir: Path) -> None:
    """Raise if a write into a run directory, which somebody else may have laid out, could reach another directory.

    Links that stay inside the directory are allowed, such as latest.pt.
    """
    root = os.path.realpath(run_dir)
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in (*folders, *files)):  # noqa: PTH118 (thousands of paths)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue  # a launch that trains this run has just removed it
            if stat.S_ISLNK(mode) and not os.path.realpath(path).startswith(root + os.sep):
                raise UserError(f"{flag}: {path} is a link that leads out of the run directory; replace or remove it")
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UserError(f"{flag}: {path} is neither a file nor a directory; remove it")
        if folder == os.path.join(root, "wandb"):  # noqa: PTH118
            folders.clear()  # wandb puts links to its cache into them, and a resumed run gets a new one


@contextlib.contextmanager
def explaining(run_dir: Path, path: Path | None = None) -> Iterator[None]:
    """Replace the message of an OSError with one line that explains it to the user.

    Raises:
        DiskFullError: If a disk is full.
        OSError: If the file cannot be written for another reason.
    """
    try:
        yield
    except (DiskFullError, UserError):
        raise
    except Exception as error:
        cause = _os_error(error)
        if cause is not None and cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            file = path or cause.filename or "a file"
            raise DiskFullError(
                f"--log-root {run_dir.parent.parent}: no space left for {file}; make room there, keep fewer "
                "checkpoints (--checkpoint.keep-last), or choose another disk; earlier checkpoints are intact"
            ) from cause
        if cause is None or path is None:
            raise
        raise OSError(
            f"{path}: cannot be written ({cause.strerror or cause}); resolve this, then resume the run; earlier "
            "checkpoints are intact"
        ) from cause


def _os_error(error: BaseException | None) -> OSError | None:
    """Return the OSError that caused an error. For example, torch.save turns the file's OSError into a RuntimeError."""
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__ or error.__context__
    return error
