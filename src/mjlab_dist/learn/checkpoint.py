"""Checkpoints: written so that no reader ever sees half of one, read without running code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from mjlab_dist.errors import UserError


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint under a temporary name, sync it, then rename it.

    Args:
        path: Where it goes; the directory is made.
        content: Tensors, containers and plain values.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(path: Path, device: str) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: The file.
        device: Where its tensors go, whatever device wrote them.

    Raises:
        UserError: If the file is damaged or holds more than tensors and plain values.
    """
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        # torch.load raises nearly anything on a damaged file: zip errors, pickle errors, RuntimeError, EOFError.
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise UserError(f"checkpoint {path}: cannot be read ({reason}); choose another one") from error
