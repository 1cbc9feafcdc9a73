"""Warp kernels, compiled once per machine: collected by a dry run, built in parallel under a lock, then loaded."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import warp as wp


def prepare(device: str, program: Callable[[], None], *, num_workers: int, announce: Callable[[], None]) -> None:
    """Compile (or load from Warp's cache) every kernel that a program launches.

    MuJoCo Warp makes most of its kernels while it runs, so the program is run dry: recorded with every launch left out.
    What it would have launched is then compiled by several threads. Ranks of one machine take turns at a file lock in
    Warp's cache, so that one of them compiles and the others load.

    Args:
        device: Warp's name of the device.
        program: Launches the kernels; must be capturable in a graph.
        num_workers: Threads that compile.
        announce: Called before compiling starts, and only if something is missing in the cache.
    """
    wanted = _collect(device, program)
    with _cache_lock():
        if not all(_is_cached(module, block_dim) for block_dim, modules in wanted.items() for module in modules):
            announce()
        for block_dim, modules in wanted.items():
            wp.force_load(device=device, modules=modules, block_dim=block_dim, max_workers=num_workers)


@contextlib.contextmanager
def no_gc() -> Iterator[None]:
    """Keep the garbage collector off: it may free an old graph's memory in the middle of a capture, which breaks it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _collect(device: str, program: Callable[[], None]) -> dict[int | None, list[wp.Module]]:
    """The modules that the program needs, by block size."""
    seen: dict[tuple[wp.Module, int | None], None] = {}

    def note(module: wp.Module, _device: object, block_dim: int | None = None, *_: Any, **__: Any) -> None:
        # Warp takes None to mean that the module could not be loaded, and then skips the launch.
        seen[module, block_dim] = None

    with (
        no_gc(),
        mock.patch.object(wp.Module, "load", note),
        wp.ScopedCapture(device=device, force_module_load=False),
    ):
        program()
    by_block_dim: dict[int | None, list[wp.Module]] = {}
    for module, block_dim in seen:
        by_block_dim.setdefault(block_dim, []).append(module)
    return by_block_dim


def _is_cached(module: wp.Module, block_dim: int | None) -> bool:
    return (_cache_dir() / module.get_module_identifier(block_dim)).is_dir()


def _cache_dir() -> Path:
    assert wp.config.kernel_cache_dir is not None, "Warp sets it in wp.init()"
    return Path(wp.config.kernel_cache_dir)


@contextlib.contextmanager
def _cache_lock() -> Iterator[None]:
    fd = os.open(_cache_dir() / "mjlab_dist.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
