"""Initialization of Warp without unwanted output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import warp as wp


def start_warp(device: str) -> None:
    """Initialize Warp. On the CPU, hide its warning that there is no NVIDIA driver, which no setting disables.

    Args:
        device: ``cpu`` or ``cuda:<index>``.
    """
    wp.config.log_level = wp.LOG_WARNING
    with _native_stderr_closed() if device == "cpu" else contextlib.nullcontext():
        wp.init()


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
