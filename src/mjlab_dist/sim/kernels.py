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

Variant = tuple[wp.Module, int]
"""A Warp module and the number of threads per block that it is compiled for."""


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
    needed = _collect(device, program)
    by_block_dim: dict[int, list[wp.Module]] = {}
    for module, block_dim in needed:
        by_block_dim.setdefault(block_dim, []).append(module)
    with _cache_lock():
        if not all(_is_cached(*variant) for variant in needed):
            announce()
        for block_dim, modules in by_block_dim.items():
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


def _collect(device: str, program: Callable[[], None]) -> list[Variant]:
    """Return every module variant that the program needs, in the order of its launches."""
    needed: dict[Variant, None] = {}

    def note(module: wp.Module, _device: object, block_dim: int | None = None, *_: Any, **__: Any) -> None:
        # None is what Warp gets for a module that cannot be loaded; it then skips the launch.
        needed[module, int(block_dim or module.options["block_dim"])] = None

    def suggest_block_size(kernel: wp.Kernel, device: Any = None) -> tuple[int, int]:
        if not wp.get_device(device).is_cuda:
            return 1, 1
        # Warp loads the module's default variant to compute the kernel's occupancy. The answer only sizes grids, and the dry run
        # launches nothing.
        note(kernel.module, device)
        return kernel.module.options["block_dim"], 1

    with (
        no_gc(),
        mock.patch.object(wp.Module, "load", note),
        mock.patch.object(wp, "get_suggested_block_size", suggest_block_size),
        wp.ScopedCapture(device=device, force_module_load=False),
    ):
        program()
    return list(needed)


def _is_cached(module: wp.Module, block_dim: int) -> bool:
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
