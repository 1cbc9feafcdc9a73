"""The file format of packs. Imports the standard library only.

A pack is a run in one file, for other people. It is a zip file that is read in place: nothing is ever extracted.

    pack.json          version of the format, task, checkpoint, iteration, versions of the packages at packing
    README.md          model card
    config.yaml        the run's config, without settings specific to the training machine
    checkpoint.pt      policy and value function with their normalizers
    provenance.json    command line, commit, devices, and versions of the packages in training
    metrics.jsonl      one row per iteration
    policy.onnx        the exported policy

A pack may come from someone who is not trusted, so only these names are accepted, each at most once. No file may be
larger than its maximum size in :data:`MAX_BYTES`; a file without a maximum size may not be larger than the whole pack.
"""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mjlab_dist.errors import UserError, printable
from mjlab_dist.runs.outputs import write_atomically

MANIFEST = "pack.json"
CHECKPOINT = "checkpoint.pt"
CARD = "README.md"
ONNX = "policy.onnx"

# Version of the format. It increases when a change makes new packs unreadable for older versions of this package.
PACK_FORMAT = 1

KB, MB = 1 << 10, 1 << 20

# Files of a pack in their order, and their maximum sizes in bytes; None for files that are stored uncompressed, which
# are never larger than the pack.
MAX_BYTES: Mapping[str, int | None] = {
    MANIFEST: 64 * KB,
    CARD: MB,
    "config.yaml": 4 * MB,
    CHECKPOINT: None,
    "provenance.json": 4 * MB,
    "metrics.jsonl": 256 * MB,
    ONNX: None,
}

REQUIRED_FILES = (MANIFEST, "config.yaml", CHECKPOINT)

# Modification time of all files. It is constant, so that the same contents give the same bytes.
ZIP_TIME = (1980, 1, 1, 0, 0, 0)

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
    if manifest["format"] > PACK_FORMAT:
        raise UserError(
            f"{path}: is a pack of format {manifest['format']}, but this version of mjlab_dist reads formats up to "
            f"{PACK_FORMAT}; install a newer version"
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
    assert set(REQUIRED_FILES) <= set(contents) <= set(MAX_BYTES)
    write_atomically(path, _zipped(contents))


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, limit in MAX_BYTES.items():
            if name not in contents:
                continue
            assert limit is None or len(contents[name]) <= limit
            info = zipfile.ZipInfo(name, ZIP_TIME)
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
    missing = (f"it has no {name}" for name in REQUIRED_FILES if name not in counts)
    return next(filter(None, (_fault_of(file, counts[file.filename], size) for file in files)), next(missing, None))


def _fault_of(file: zipfile.ZipInfo, count: int, size: int) -> str | None:
    name = printable(file.filename)[:80]
    limit = MAX_BYTES.get(file.filename)
    is_stored = file.compress_type == zipfile.ZIP_STORED
    faults = {
        f"it contains {name}": file.filename not in MAX_BYTES,
        f"it contains {name} twice": count > 1,
        f"{name} in it is not a plain file": stat.S_IFMT(file.external_attr >> 16) not in (0, stat.S_IFREG),
        f"{name} in it is encrypted": file.flag_bits & ENCRYPTED,
        f"the compression of {name} in it is not allowed": not is_stored
        and (limit is None or file.compress_type != zipfile.ZIP_DEFLATED),
        f"{name} in it has {file.file_size:,} bytes, which is too much": file.file_size > (limit or size),
    }
    return next((fault for fault, is_found in faults.items() if is_found), None)
