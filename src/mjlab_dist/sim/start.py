"""Initialization of Warp without unwanted output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import warp as wp

from mjlab_dist.errors import PreflightError


def start_warp(device: str) -> None:
    """Initialize Warp. On the CPU, hide Warp's warning about a missing NVIDIA driver, which no setting disables.

    Args:
        device: ``cpu`` or ``cuda:<index>``.

    Raises:
        PreflightError: If the directory for compiled kernels cannot be created or written to.
    """
    wp.config.log_level = wp.LOG_WARNING
    wp.config.cuda_output = "cubin"  # machine code; the driver of each rank would compile PTX again at every start
    try:
        with _native_stderr_closed() if device == "cpu" else contextlib.nullcontext():
            wp.init()
    except OSError as error:
        if error.filename is None:
            raise  # one of Warp's libraries cannot be loaded
        raise _unwritable(error.filename, error.strerror) from error
    assert wp.config.kernel_cache_dir is not None
    if not os.access(wp.config.kernel_cache_dir, os.W_OK | os.X_OK):
        raise _unwritable(wp.config.kernel_cache_dir, "cannot be written")


def _unwritable(directory: str, why: str | None) -> PreflightError:
    setting = "WARP_CACHE_PATH"
    return PreflightError(f"{setting} {directory}: {why}; set {setting} to a directory that you can write to")


@contextlib.contextmanager
def _native_stderr_closed() -> Iterator[None]:
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
