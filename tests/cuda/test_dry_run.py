"""The dry run that collects kernels before a recording, on the branches that MuJoCo Warp takes on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import mujoco_warp as mjw
import pytest
import warp as wp
from warp_as_cuda import variants_that_a_recording_loads, variants_that_the_dry_run_finds

from mjlab_dist.config import registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.env import Env
from mjlab_dist.sim import recorder, start_warp
from mjlab_dist.sim.ordering import Ordering
from mjlab_dist.sim.warp_engine import WarpEngine

Variants = set[recorder.Variant]


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Variants, Variants]]:
    """For each program that an env records, the variants that the dry run finds and those that the recording loads."""
    start_warp("cpu")
    pairs: list[tuple[Variants, Variants]] = []
    prepare = recorder.prepare

    def examine(device: str, program: Callable[[], None]) -> None:
        pairs.append((set(variants_that_the_dry_run_finds(program)), set(variants_that_a_recording_loads(program))))
        prepare(device, program)

    monkeypatch.setattr(recorder, "prepare", examine)
    return pairs


@pytest.mark.parametrize("task", registry.task_names())
def test_the_dry_run_finds_exactly_the_kernels_that_a_recording_loads(
    task: str, collected: list[tuple[Variants, Variants]]
) -> None:
    Env(registry.task_config(task).env, 4, "cpu")
    assert collected
    for found, loaded in collected:
        assert {(module.name, size) for module, size in loaded ^ found} == set()


@pytest.mark.parametrize("task", ["arm-lift-cube", "quadruped-velocity-rough"])
def test_the_dry_run_finds_the_kernels_of_the_deterministic_mode(task: str) -> None:
    start_warp("cpu")
    config = registry.task_config(task).env
    sim = Env(replaced(config, ["sim", "engine"], "warp"), 4, "cpu").sim
    ordering, engine = Ordering("", sim._warp_model, sim._data), sim._engine
    assert isinstance(engine, WarpEngine)
    engine._step_once, engine._forward_once = ordering.ordered(mjw.step), ordering.ordered(mjw.forward)
    for program in (engine._all_substeps, engine._forward):
        found, loaded = variants_that_the_dry_run_finds(program), variants_that_a_recording_loads(program)
        assert {(module.name, size) for module, size in set(loaded) ^ set(found)} == set()
        assert any("mjlab_dist.sim.ordering" in module.name for module, _ in found)
        assert any(module.options["deterministic"] == wp.DeterministicMode.RUN_TO_RUN for module, _ in found)


def test_a_kernel_with_an_occupancy_query_is_loaded_for_both_block_sizes(
    collected: list[tuple[Variants, Variants]],
) -> None:
    Env(registry.task_config("quadruped-velocity-flat").env, 4, "cpu")
    sizes: dict[str, set[int]] = {}
    for found, _ in collected:
        for module, size in found:
            sizes.setdefault(module.name, set()).add(size)
    assert any({128, 256} <= found for name, found in sizes.items() if "nxn_broadphase" in name)


def test_a_recording_reports_loaded_kernels_and_launches_none() -> None:
    def fill_with_ones(values: wp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]
        values[wp.tid()] = 1.0

    start_warp("cpu")
    kernel = wp.Kernel(fill_with_ones, module=wp.get_module("a_kernel_of_this_test"))
    values = wp.zeros(3, device="cpu")

    def launch() -> None:
        wp.launch(kernel, dim=3, inputs=[values], block_dim=64)

    loaded = variants_that_a_recording_loads(launch)
    assert loaded == [(kernel.module, 64)]
    assert not values.numpy().any()
