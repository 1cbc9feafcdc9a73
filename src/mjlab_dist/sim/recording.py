"""Recording of Warp kernel launches as graphs: CUDA graphs on a GPU, Warp's recorded launches on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import warp as wp

from mjlab_dist.garbage_collection import no_gc

CAPTURABLE_DRIVER = (12, 4)
"""Oldest CUDA driver whose graphs support conditional nodes, which the solver's loop needs."""


def why_not_capturable(device: str) -> str:
    """Return why no graph can be recorded on a device; empty if one can.

    Args:
        device: ``cpu`` or ``cuda:<index>``.
    """
    found = wp.get_device(device)
    if found.is_cpu:
        return ""
    driver = wp.get_cuda_driver_version()
    if driver is None or driver < CAPTURABLE_DRIVER:
        return f"conditional graph nodes need CUDA 12.4, and the NVIDIA driver has {driver}"
    if not wp.is_mempool_enabled(found):
        return "CUDA memory pools are off on this device"
    return ""


def capture(device: str, program: Callable[[], None]) -> wp.Graph:
    """Record a program as a graph.

    Args:
        device: ``cpu`` or ``cuda:<index>``.
        program: Function that launches the kernels. They must be loaded already: loading one breaks the capture.
    """
    with no_gc(), wp.ScopedCapture(device=device, force_module_load=False) as recording:
        program()
    assert recording.graph is not None
    return recording.graph
