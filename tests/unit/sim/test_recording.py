"""Graphs that are recorded and replayed in several threads, and devices that cannot record graphs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import warp as wp
from conftest import Command
from warp._src import context

from mjlab_dist.sim import start_warp
from mjlab_dist.sim.recorder import why_not_capturable

IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from mjlab_dist.config import SimConfig
from mjlab_dist.sim import Simulation, load_model, start_warp

NUM_ENVS, NUM_STEPS = 512, {"physics": 500, "off": 60}


def build(capture):
    return Simulation(model, NUM_ENVS, "cpu", SimConfig(model="", njmax=2, nconmax=0, capture=capture))


def simulate(sim, capture):
    sim.qpos[:] = torch.linspace(-2, 2, NUM_ENVS)[:, None]
    sim.forward()
    for _ in range(NUM_STEPS[capture]):
        sim.step()
    return torch.cat([sim.qpos, sim.qvel], dim=1)


start_warp("cpu")
model = load_model("mjlab_dist_tasks.cartpole:cartpole.xml")
captures = sys.argv[1:]
alone = [simulate(build(capture), capture) for capture in captures]
sims = [build(capture) for capture in captures]
with ThreadPoolExecutor(len(sims)) as pool:
    together = list(pool.map(simulate, sims, captures))
print([torch.equal(*results) for results in zip(alone, together)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("captures", [("physics", "physics"), ("physics", "off")])
def test_threads_that_simulate_at_the_same_time_do_not_affect_each_other(command: Command, captures: tuple[str, str]):
    done = command(command.script(IN_THREADS), *captures)
    assert (done.code, done.out) == (0, "[True, True]\n"), done.err


def test_versions_of_cuda_are_printed_with_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "get_device", lambda _: SimpleNamespace(is_cpu=False))
    monkeypatch.setattr(wp, "get_cuda_driver_version", lambda: (12, 3))
    reason = why_not_capturable("cuda:0")
    assert "CUDA 12.4" in reason
    assert "CUDA 12.3" in reason


def test_kernels_are_compiled_to_machine_code_also_for_a_driver_that_compiles_ptx() -> None:
    """With a driver that is as new as Warp's compiler, Warp's own choice is PTX, which each process compiles again."""
    start_warp("cpu")
    versions = SimpleNamespace(driver_version=(99, 0), toolkit_version=(13, 4))
    device: Any = SimpleNamespace(is_cpu=False, is_cubin_supported=True, runtime=versions)
    assert context.Device.get_cuda_output_format(device) == "cubin"
