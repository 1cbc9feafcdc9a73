"""Files of a run, in its directory or in a pack. Imports the standard library only."""

from __future__ import annotations

from pathlib import Path

from mjlab_dist.pack_file import has_part, is_pack, read_manifest, read_part


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
    """Return a file of a run directory or a pack.

    Raises:
        OSError: If the file cannot be read.
        UserError: If the pack is damaged.
    """
    return read_part(run, name) if run.is_file() else (run / name).read_bytes()
