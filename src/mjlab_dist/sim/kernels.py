"""Warp kernels: collected by a dry run, compiled in parallel once per machine and architecture, then loaded."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import warp as wp

from mjlab_dist.garbage_collection import no_gc
from mjlab_dist.messages import emit
from mjlab_dist.patching import patched

Variant = tuple[wp.Module, int]
"""A Warp module and the number of threads per block that it is compiled for."""


def prepare(device: str, program: Callable[[], None]) -> None:
    """Compile and load every kernel that a program launches.

    MuJoCo Warp makes most of its kernels while it runs, so the program is first recorded with every launch left out, which
    collects what it would load. Missing kernels are compiled by as many threads as this process has cores. Ranks of one machine
    take turns at a file lock in Warp's cache: the first one compiles, the others wait for as long as that takes and then load.
    ``compiling`` events report the progress.

    Args:
        device: Warp's name of the device.
        program: Launches the kernels; must be capturable in a graph.
    """
    needed = _collect(device, program)
    with _cache_lock():
        missing = [variant for variant in needed if not _is_cached(device, *variant)]
        if missing:
            emit("compiling", done=0, total=len(missing))
        for done, _ in enumerate(_load(device, missing), start=1):
            emit("compiling", done=done, total=len(missing))
    for _ in _load(device, needed):
        pass


def _load(device: str, variants: Sequence[Variant]) -> Iterator[None]:
    """Load module variants by several threads, compiling those that are not in the cache; yield after each."""
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(module.load, device, block_dim) for module, block_dim in variants]
        try:
            for future in as_completed(futures):
                future.result()
                yield
        except BaseException:
            pool.shutdown(cancel_futures=True)  # after an error there is no point in compiling the rest
            raise


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
        no_gc(),  # it may free an old graph's memory in the middle of the capture, which breaks it
        patched(wp.Module, "load", note),
        patched(wp, "get_suggested_block_size", suggest_block_size),
        wp.ScopedCapture(device=device, force_module_load=False),
    ):
        program()
    return list(needed)


def _is_cached(device: str, module: wp.Module, block_dim: int) -> bool:
    """Return whether the cache has a module's binary for this device's architecture."""
    binary = module._get_compile_output_name(wp.get_device(device), block_dim=block_dim)
    return (_cache_dir() / module.get_module_identifier(block_dim) / binary).is_file()


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
