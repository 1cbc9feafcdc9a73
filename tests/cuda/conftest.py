"""Tests in this folder are about envs on a GPU, so their envs on the CPU use the engine of GPUs."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _engine_of_gpus() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mjlab_dist.sim.simulation.choose_engine", lambda *_: "warp")
        yield
