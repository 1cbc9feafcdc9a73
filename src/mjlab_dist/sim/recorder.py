"""Compile Warp kernels, record programs of them on one device, once, and replay them.

In this package, a program is a function that launches Warp kernels. Its recording is a CUDA graph on a GPU, or Warp's
recorded launches on the CPU. Kernels are compiled once per machine and architecture.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import warp as wp
from warp._src import context

from mjlab_dist.imports import no_gc, patched
from mjlab_dist.messages import emit

# A Warp module and the number of threads per block that it is compiled for
Variant = tuple[wp.Module, int]

# Prefixes of the lines of /proc/cpuinfo that describe the processor's features, on x86 and ARM
PROCESSOR = ("model", "flags", "CPU", "Features")

# Oldest CUDA driver whose graphs support conditional nodes, which the solver's loop needs
CAPTURABLE_DRIVER = (12, 4)

# Lock held while kernels run on the CPU, because all threads of a process share the memory of a kernel's tiles
_cpu_kernels = threading.RLock()

# A program that takes no arguments
Run = Callable[[], None]


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


def why_not_capturable(device: str) -> str:
    """Return why no graph can be recorded on a device; empty if one can."""
    found = wp.get_device(device)
    if found.is_cpu:
        return ""
    driver = wp.get_cuda_driver_version()
    assert driver, "Warp lists a CUDA device"
    if driver < CAPTURABLE_DRIVER:
        needed, supported = (".".join(map(str, version)) for version in (CAPTURABLE_DRIVER, driver))
        return f"conditional graph nodes need CUDA {needed}, but the NVIDIA driver supports only CUDA {supported}"
    if not wp.is_mempool_enabled(found):
        return "CUDA memory pools are off on this device"
    return ""


def capture(device: str, program: Callable[[], None]) -> wp.Graph:
    """Record a program as a graph."""
    with no_gc(), wp.ScopedCapture(device=device, force_module_load=False) as recording:
        program()
    assert recording.graph is not None
    return recording.graph


def replay(graphs: Sequence[wp.Graph], stream: wp.Stream | None) -> None:
    """Launch the kernels of graphs of one device, one graph after the other."""
    with launching(graphs[0].device):
        for graph in graphs:
            wp.capture_launch(graph, stream=stream)


@contextlib.contextmanager
def launching(device: wp.Device) -> Iterator[None]:
    """Make other threads wait while this thread launches kernels on the CPU.

    Without this lock, envs that are simulated in two threads would read each other's numbers, or the process
    would crash.
    """
    with _cpu_kernels if device.is_cpu else contextlib.nullcontext():
        yield


class Recorder:
    """Records programs and runs them in the order of the torch operations around them.

    Attributes:
        graphs: The recording of each program; empty if programs are not recorded.
        launch: Function that launches recorded programs. It is replaced while torch operations are recorded as a CUDA
            graph, because the launch of a graph cannot be recorded in another graph.
        num_changes: Number of runs that may have changed the state.
    """

    def __init__(self, device: str, *, captures: bool) -> None:
        """Check whether the device can record programs."""
        reason = why_not_capturable(device)
        if captures and reason:
            emit("warning", text=f"the physics is not captured, which is slower: {reason}")
        self.captures, self._prepares = captures and not reason, not reason
        self.graphs: dict[Run, wp.Graph] = {}
        self.launch: Callable[[Run], None] = operator.call
        self.num_changes = 0
        self._device = device
        self._stream = wp.stream_from_torch(device) if device != "cpu" else None
        self._readers: set[Run] = set()

    def record(self, *programs: Run, changes_state: bool = True) -> None:
        """Compile missing kernels of programs, and record each program.

        Programs must allocate no memory, and the caller must keep the arrays that their kernels use.
        """
        if not changes_state:
            self._readers.update(programs)
        with wp.ScopedDevice(self._device):
            # Load every kernel first, because loading a module during a capture breaks the capture.
            if self._prepares:
                prepare(self._device, functools.partial(_call_all, programs))
            if self.captures:
                self.graphs |= {program: capture(self._device, program) for program in programs}

    def run(self, *programs: Run) -> None:
        """Run programs, in order."""
        if not self._readers.issuperset(programs):
            self.num_changes += 1
        if self.graphs.keys() >= set(programs):
            graphs = [self.graphs[program] for program in programs]
            # On the torch stream, so that these kernels and those of the terms stay in order without a synchronization.
            self.launch(functools.partial(replay, graphs, self._stream))
        elif self._stream is None:
            # Without a recording, Python launches the same kernels one by one.
            with wp.ScopedDevice(self._device) as device, launching(device):
                _call_all(programs)
        else:
            with wp.ScopedStream(self._stream):
                _call_all(programs)


def _call_all(programs: tuple[Run, ...]) -> None:
    for program in programs:
        program()
