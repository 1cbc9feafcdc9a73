"""Recording of Warp kernel launches as graphs: CUDA graphs on a GPU, Warp's recorded launches on the CPU.

In this package, a program is a function that launches Warp kernels. It is recorded once and then replayed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import warp as wp

from mjlab_dist.garbage_collection import no_gc

# Oldest CUDA driver whose graphs support conditional nodes, which the solver's loop needs
CAPTURABLE_DRIVER = (12, 4)

# Lock held while kernels run on the CPU, because all threads of a process share the memory of a kernel's tiles
_cpu_kernels = threading.RLock()


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
