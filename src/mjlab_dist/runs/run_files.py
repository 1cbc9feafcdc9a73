"""Files of a run, in its directory or in a pack. Imports the standard library only.

A pack is a run in one file, for other people. It is a zip file that is read in place: nothing is ever extracted.

    pack.json          version of the format, task, checkpoint, iteration, versions of the packages at packing
    README.md          model card
    config.yaml        the run's config, without settings specific to the training machine
    checkpoint.pt      policy and value function with their normalizers
    provenance.json    command line, commit, devices, and versions of the packages in training
    metrics.jsonl      one row per iteration
    policy.onnx        the exported policy

A pack may come from someone who is not trusted, so only these names are accepted, each at most once. No file may be
larger than its maximum size in :data:`LIMITS`; a file without a maximum size may not be larger than the whole pack.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mjlab_dist.config.serialization import MAX_BITS
from mjlab_dist.errors import DiskFullError, UserError, printable
from mjlab_dist.runs.outputs import write_atomically

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MANIFEST = "pack.json"
CHECKPOINT = "checkpoint.pt"
CARD = "README.md"
ONNX = "policy.onnx"

# Version of the format. It increases when a change makes new packs unreadable for older versions of this package.
FORMAT = 1

KB, MB = 1 << 10, 1 << 20

# Files of a pack in their order, and their maximum sizes in bytes; None for files that are stored uncompressed, which
# are never larger than the pack.
LIMITS: Mapping[str, int | None] = {
    MANIFEST: 64 * KB,
    CARD: MB,
    "config.yaml": 4 * MB,
    CHECKPOINT: None,
    "provenance.json": 4 * MB,
    "metrics.jsonl": 256 * MB,
    ONNX: None,
}

REQUIRED = (MANIFEST, "config.yaml", CHECKPOINT)

# Modification time of all files. It is constant, so that the same contents give the same bytes.
START = (1980, 1, 1, 0, 0, 0)

# Flag bit that zip archives set for an encrypted file
ENCRYPTED = 0x1

# Bytes to decompress at a time, so that a file larger than its stated size is refused before it fills the memory
CHUNK = MB


def is_pack(path: Path) -> bool:
    """Return whether a file is a pack, which may still be damaged."""
    if not os.path.isfile(path):  # noqa: PTH113 (False, not an error, for a name that is too long)
        return False  # such as a FIFO, which zipfile would wait for
    try:
        with zipfile.ZipFile(path) as archive:
            return MANIFEST in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False


def check_pack(path: Path, flag: str) -> None:
    """Raise if a file is not a pack that can be read. Only its list of files and its manifest are read."""
    try:
        read_manifest(path)
    except (OSError, UserError) as error:
        reason = str(error).removeprefix(f"{path}: ") if isinstance(error, UserError) else error.strerror
        raise UserError(f"{flag} {path}: {reason}".lstrip()) from error


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a pack: its task, the name of its checkpoint, and its iteration."""
    data = read_part(path, MANIFEST)
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {MANIFEST} in it is not JSON; get the file again") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise UserError(f"{path}: its {MANIFEST} has no field named format; get the file again")
    if manifest["format"] > FORMAT:
        raise UserError(
            f"{path}: is a pack of format {manifest['format']}, but this version of mjlab_dist reads formats up to "
            f"{FORMAT}; install a newer version"
        )
    if not isinstance(manifest.get("task"), str) or not isinstance(manifest.get("checkpoint"), str):
        raise UserError(f"{path}: {MANIFEST} in it names no task or checkpoint; get the file again")
    return manifest


def has_part(path: Path, name: str) -> bool:
    """Return whether a pack has a file."""
    with _opened(path) as archive:
        return name in archive.namelist()


def read_part(path: Path, name: str) -> bytes:
    """Return the contents of a file in a pack."""
    with _opened(path) as archive:
        if name not in archive.namelist():
            raise FileNotFoundError(f"{path} has no {name}")
        try:
            with archive.open(name) as file:
                return b"".join(iter(lambda: file.read(CHUNK), b""))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            raise UserError(f"{path}: {name} in it is damaged ({error}); get the file again") from error


def write_pack(path: Path, contents: Mapping[str, bytes]) -> None:
    """Write a pack. At any time there is either no file or a complete one. The same contents give the same bytes."""
    assert set(REQUIRED) <= set(contents) <= set(LIMITS)
    write_atomically(path, _zipped(contents))


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, limit in LIMITS.items():
            if name not in contents:
                continue
            assert limit is None or len(contents[name]) <= limit
            info = zipfile.ZipInfo(name, START)
            info.compress_type = zipfile.ZIP_STORED if limit is None else zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, so that unzip applies the permissions
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, contents[name])
    return buffer.getvalue()


def _opened(path: Path) -> zipfile.ZipFile:
    """Open a pack, and check all names and sizes in its list of files."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: is not a pack, or is incomplete; give a file that mjlab-dist pack wrote") from error
    fault = _fault(archive.infolist(), path.stat().st_size)
    if fault is not None:
        archive.close()
        raise UserError(f"{path}: is not a pack ({fault}); give a file that mjlab-dist pack wrote")
    return archive


def _fault(files: list[zipfile.ZipInfo], size: int) -> str | None:
    """Return why a zip file is not a pack; None if it is one."""
    counts = Counter(file.filename for file in files)
    missing = (f"it has no {name}" for name in REQUIRED if name not in counts)
    return next(filter(None, (_fault_of(file, counts[file.filename], size) for file in files)), next(missing, None))


def _fault_of(file: zipfile.ZipInfo, count: int, size: int) -> str | None:
    name = printable(file.filename)[:80]
    limit = LIMITS.get(file.filename)
    is_stored = file.compress_type == zipfile.ZIP_STORED
    faults = {
        f"it contains {name}": file.filename not in LIMITS,
        f"it contains {name} twice": count > 1,
        f"{name} in it is not a plain file": stat.S_IFMT(file.external_attr >> 16) not in (0, stat.S_IFREG),
        f"{name} in it is encrypted": file.flag_bits & ENCRYPTED,
        f"the compression of {name} in it is not allowed": not is_stored
        and (limit is None or file.compress_type != zipfile.ZIP_DEFLATED),
        f"{name} in it has {file.file_size:,} bytes, which is too much": file.file_size > (limit or size),
    }
    return next((fault for fault, is_found in faults.items() if is_found), None)


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
