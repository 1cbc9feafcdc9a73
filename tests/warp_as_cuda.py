"""Make Warp's CPU device look like a GPU to MuJoCo Warp, to find the modules that a recording on a GPU would load."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import warp as wp
from warp._src import context

from mjlab_dist.sim import recorder

NUM_MULTIPROCESSORS = 132
"""Number of multiprocessors of an H200."""

OCCUPANCY = (512, 2 * NUM_MULTIPROCESSORS)
"""A block size and a number of blocks that the driver may suggest. The dry run assumes different values, which must not
change the modules that it finds."""


@contextlib.contextmanager
def warp_as_cuda() -> Iterator[None]:
    """Let MuJoCo Warp and this project take their branches for GPUs, and resolve block sizes as on a GPU.

    Warp itself still sees the CPU, so that programs can be recorded. Kernels must not be launched. To
    prevent this, also replace ``wp.Module.load`` with a function that returns None.
    """

    def is_cuda(device: context.Device) -> bool:
        caller = sys._getframe(1).f_globals["__name__"].partition(".")[0]
        return device.ordinal >= 0 or caller in ("mujoco_warp", "mjlab_dist", "mjlab_dist_tasks")

    def is_cpu(device: context.Device) -> bool:
        caller = sys._getframe(1).f_globals["__name__"].partition(".")[0]
        return device.ordinal < 0 and caller not in ("mujoco_warp", "mjlab_dist", "mjlab_dist_tasks")

    def suggest_block_size(kernel: wp.Kernel, device: Any = None) -> tuple[int, int]:
        if kernel.module.load(wp.get_device(device)) is None:
            raise RuntimeError(f"Failed to load module for kernel '{kernel.key}'")
        return OCCUPANCY

    with (
        mock.patch.object(context.Device, "is_cuda", property(is_cuda)),
        mock.patch.object(context.Device, "is_cpu", property(is_cpu)),
        mock.patch.object(wp.get_device("cpu"), "sm_count", NUM_MULTIPROCESSORS),
        mock.patch.object(context, "_resolve_launch_block_dim", lambda _device, block_dim: int(block_dim or 256)),
        mock.patch.object(wp, "get_suggested_block_size", suggest_block_size),
    ):
        yield


def variants_that_the_dry_run_finds(program: Callable[[], None]) -> list[recorder.Variant]:
    """Let the dry run collect the module variants of a program as on a GPU.

    Args:
        program: Function that launches kernels on the CPU device.
    """
    with warp_as_cuda():
        found, is_complete = recorder._collect("cpu", program)
        if is_complete:
            return found
        # By the second dry run, the modules of the first one are loaded.
        with (
            mock.patch.object(recorder, "_is_loaded", lambda _, *variant: variant in found),
            mock.patch.object(wp.Module, "load", return_value=object()),
        ):
            return recorder._collect("cpu", program)[0]


def variants_that_a_recording_loads(program: Callable[[], None]) -> list[recorder.Variant]:
    """Record a program as on a GPU. Return the module variants in the order in which the recording loads them.

    Args:
        program: Function that launches kernels on the CPU device.
    """
    loaded: list[recorder.Variant] = []

    def load(module: wp.Module, _device: Any, block_dim: int | None = None, *_: Any, **__: Any) -> None:
        loaded.append((module, int(block_dim or module.options["block_dim"])))

    def suggest_block_size(kernel: wp.Kernel, device: Any = None) -> tuple[int, int]:
        load(kernel.module, device)
        return OCCUPANCY

    with (
        recorder.no_gc(),
        warp_as_cuda(),
        mock.patch.object(wp.Module, "load", load),
        mock.patch.object(wp, "get_suggested_block_size", suggest_block_size),
        wp.ScopedCapture(device="cpu", force_module_load=False),
    ):
        program()
    return loaded
