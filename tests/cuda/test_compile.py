"""Kernels compile for GPUs. The tests run without a GPU, because the compiler NVRTC does not need one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import warp as wp
from warp_as_cuda import variants_that_the_dry_run_finds

from mjlab_dist.config import registry
from mjlab_dist.env import Env
from mjlab_dist.sim import recorder, start_warp

ARCHITECTURES = (80, 120)
"""Compute capabilities, multiplied by ten, of the oldest and the newest supported GPU: A100 and RTX 5090.

Our kernels contain no code for particular architectures. So kernels that compile for these two architectures also
compile for the architectures in between. The long test compiles for H100 and H200.
"""

OPTIMIZATION = {80: 1, 120: 1}
"""Dict from architecture to optimization level. Compilation with Warp's default level takes twice as long.

Errors are found at any level. The long test compiles with Warp's default level.
"""

NUM_WORKERS = 2


@pytest.fixture(scope="module")
def variants() -> list[recorder.Variant]:
    """Modules that a quadruped on uneven ground needs on a GPU: kernels of MuJoCo Warp and our own kernels."""
    start_warp("cpu")
    found: dict[recorder.Variant, None] = {}
    prepare = recorder.prepare

    def examine(device: str, program: Callable[[], None]) -> None:
        found.update(dict.fromkeys(variants_that_the_dry_run_finds(program)))
        prepare(device, program)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "prepare", examine)
        Env(registry.task_config("quadruped-velocity-rough").env, 4, "cpu")
    return list(found)


def compile_for(architecture: int, variant: recorder.Variant, directory: Path) -> tuple[Path, float]:
    """Compile a module variant to machine code. Return the file, and the duration in seconds."""
    module, block_dim = variant
    options = {**module.resolve_options(wp.config), "block_dim": block_dim}
    options["optimization_level"] = OPTIMIZATION.get(architecture, options["optimization_level"])
    module.get_module_hash(block_dim)
    name = f"{module.name}.{block_dim}.sm{architecture}"
    start = time.perf_counter()
    module._compile(None, directory / name, f"{name}.cubin", architecture, use_ptx=False, options=options)
    return directory / name / f"{name}.cubin", time.perf_counter() - start


@pytest.mark.slow
def test_our_own_kernels_compile_for_the_oldest_and_the_newest_architecture(
    variants: list[recorder.Variant], tmp_path: Path
) -> None:
    ours = [variant for variant in variants if variant[0].name.startswith("mjlab_dist")]
    assert {module.name for module, _ in ours} == {
        "mjlab_dist.env.frame_kernels",
        "mjlab_dist.env.kernels",
        "mjlab_dist.mdp.kernels",
        "mjlab_dist.sim.data",
        "mjlab_dist.sim.height_field",
    }
    jobs = [(architecture, variant, tmp_path) for architecture in ARCHITECTURES for variant in ours]
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        for binary, _ in pool.map(lambda job: compile_for(*job), jobs):
            assert binary.read_bytes().startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_kernel_of_a_quadruped_step_compiles(variants: list[recorder.Variant], tmp_path: Path) -> None:
    """``pytest -s`` prints the seconds per module. docs/performance.md contains these times."""
    start = time.perf_counter()
    with ThreadPoolExecutor(NUM_WORKERS) as pool:
        done = list(pool.map(lambda variant: compile_for(90, variant, tmp_path), variants))
    took = time.perf_counter() - start
    for binary, seconds in sorted(done, key=lambda one: -one[1]):
        print(f"{seconds:6.1f} s  {binary.name}")
        assert binary.read_bytes().startswith(b"\x7fELF")
    print(
        f"{len(done)} module variants, {sum(seconds for _, seconds in done):.0f} s of work, "
        f"{took:.0f} s by {NUM_WORKERS} threads"
    )
