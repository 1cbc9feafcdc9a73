"""Compile Warp kernels: find them in a dry run, compile them once per machine and architecture, and load them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import warp as wp
from warp._src import context

from mjlab_dist.garbage_collection import no_gc
from mjlab_dist.messages import emit
from mjlab_dist.patching import patched

# A Warp module and the number of threads per block that it is compiled for
Variant = tuple[wp.Module, int]

# Prefixes of the lines of /proc/cpuinfo that describe the processor's features, on x86 and ARM
PROCESSOR = ("model", "flags", "CPU", "Features")


def prepare(device: str, program: Callable[[], None]) -> None:
    """Compile and load every kernel that a program (a function that launches kernels) needs.

    MuJoCo Warp creates most of its kernels while it runs. The program is therefore captured first with module loading
    disabled, to find the modules that it needs. Modules that are not in Warp's cache are compiled, with one thread per
    core of this process. Ranks of one machine share a file lock in the cache: the first rank compiles, and the others
    wait and then load the result. ``compiling`` events report the progress.
    """
    found, is_complete = _collect(device, program)
    _make_loaded(device, found)
    if not is_complete:
        _make_loaded(device, _collect(device, program)[0])


def _make_loaded(device: str, variants: Sequence[Variant]) -> None:
    needed = [variant for variant in variants if not _is_loaded(device, *variant)]
    if not needed:
        return
    # Compile what the cache lacks, in one rank per machine.
    fd = os.open(_cache_dir() / "mjlab_dist.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        missing = [variant for variant in needed if not _is_cached(device, *variant)]
        if missing:
            emit("compiling", done=0, total=len(missing))
            for done, _ in enumerate(_compile(device, missing), start=1):
                emit("compiling", done=done, total=len(missing))
    finally:
        os.close(fd)  # releases the lock
    # Load the rest from the cache, without the lock.
    for _ in _load(device, needed):
        pass


def _compile(device: str, variants: Sequence[Variant]) -> Iterator[None]:
    """Compile and load module variants in parallel; yield after each one. The caller must hold the cache lock.

    Before Warp compiles for the CPU, it precompiles its C++ header in each thread, to a temporary directory. This takes
    as long as compiling ten small modules, so all threads and later processes share one header instead.
    """
    if not wp.get_device(device).is_cpu:
        yield from _load(device, variants)
        return
    headers = _headers_dir()
    headers.mkdir(parents=True, exist_ok=True)
    for unfinished in headers.glob("*.tmp"):  # left by a process that was killed
        with contextlib.suppress(OSError):  # the file belongs to another user
            unfinished.unlink()
    with patched(context.runtime, "get_clang_pch_dir", lambda: str(headers)):
        if not any(headers.glob("*.pch")):
            # One thread writes the header before the other threads look for it.
            smallest = min(variants, key=lambda variant: len(variant[0].kernels))
            yield from _load(device, [smallest])
            variants = [variant for variant in variants if variant is not smallest]
        yield from _load(device, variants)


def _headers_dir() -> Path:
    """Return the directory of the precompiled header for this installation of Warp and this processor.

    With the header of another Warp version or processor, the compiler would print errors and compile without a header.
    ``wp.clear_kernel_cache`` removes the directory, because the directory's name starts with ``wp_``.
    """
    source = Path(wp.__file__).parent / "native" / "builtin.h"
    processor: set[str] = set()
    with contextlib.suppress(OSError):
        processor = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(PROCESSOR)}
    key = repr((source, source.stat().st_mtime_ns, sorted(processor)))
    return _cache_dir() / f"wp_headers_{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _load(device: str, variants: Sequence[Variant]) -> Iterator[None]:
    """Load module variants in parallel, compiling those that are not in the cache; yield after each one."""
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(module.load, device, block_dim) for module, block_dim in variants]
        try:
            for future in as_completed(futures):
                future.result()
                yield
        except BaseException:
            pool.shutdown(cancel_futures=True)  # after an error, the remaining modules are not needed
            raise


def _collect(device: str, program: Callable[[], None]) -> tuple[list[Variant], bool]:
    """Return the module variants that the program needs, in launch order, and whether these are all."""
    needed: dict[Variant, None] = {}
    load, suggest = wp.Module.load, wp.get_suggested_block_size
    assumed = False

    def note(module: wp.Module, _device: object, block_dim: int | None = None, *_: Any, **__: Any) -> None:
        # Return None, as Warp does for a module that cannot be loaded: Warp then skips the launch.
        needed[module, int(block_dim or module.options["block_dim"])] = None

    def suggest_block_size(kernel: wp.Kernel, device: Any = None) -> tuple[int, int]:
        if not wp.get_device(device).is_cuda:
            return 1, 1
        # Warp loads the default variant of the module to compute the occupancy of the kernel. Before that, assume one.
        block_dim = kernel.module.options["block_dim"]
        note(kernel.module, device)
        if _is_loaded(str(wp.get_device(device)), kernel.module, block_dim):
            with patched(wp.Module, "load", load):
                return suggest(kernel, device)
        nonlocal assumed
        assumed = True
        return block_dim, 1

    with (
        no_gc(),  # the garbage collector could free the memory of an old graph, which breaks the capture
        patched(wp.Module, "load", note),
        patched(wp, "get_suggested_block_size", suggest_block_size),
        wp.ScopedCapture(device=device, force_module_load=False),
    ):
        program()
    # The occupancy sets only grid sizes, but the code of deterministic kernels depends on these.
    deterministic = any(module.options["deterministic"] for module, _ in needed)
    return list(needed), not (assumed and deterministic)


def _is_loaded(device: str, module: wp.Module, block_dim: int) -> bool:
    """Return whether a module is loaded on this device, and no kernel has been added to it since."""
    loaded = module.execs.get((wp.get_device(device).context, block_dim))
    return loaded is not None and loaded.module_hash == module.get_module_hash(block_dim)


def _is_cached(device: str, module: wp.Module, block_dim: int) -> bool:
    """Return whether the cache contains the binary of a module for the architecture of this device."""
    binary = module._get_compile_output_name(wp.get_device(device), block_dim=block_dim)
    return (_cache_dir() / module.get_module_identifier(block_dim) / binary).is_file()


def _cache_dir() -> Path:
    assert wp.config.kernel_cache_dir is not None, "set by wp.init()"
    return Path(wp.config.kernel_cache_dir)
