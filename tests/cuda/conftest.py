"""Envs of every task, each built once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from every_task import config_of

from mjlab_dist.env import Env
from mjlab_dist.sim import start_warp

NUM_ENVS = 4


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Tensors of a few envs are too small to share among threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def build_env() -> Callable[[str], Env]:
    """Return a function from a task's name to its envs on the CPU. Tests share them, in whatever state they are."""
    start_warp("cpu")
    built: dict[str, Env] = {}

    def build(task: str) -> Env:
        if task not in built:
            torch.manual_seed(0)
            built[task] = Env(config_of(task).env, NUM_ENVS, "cpu")
        return built[task]

    return build
