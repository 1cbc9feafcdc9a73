"""Number of torch's threads on a CPU rank in rollouts and in updates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mjlab_dist.config import registry
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.learn.runner import Runner
from mjlab_dist.sim import start_warp


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("widths", "expected"), [((8,), 1), ((4096, 1024), 2)])
def test_only_large_updates_use_all_threads(widths: tuple[int, ...], expected: int, monkeypatch: pytest.MonkeyPatch):
    start_warp("cpu")
    config = registry.task_config("cartpole-balance")
    agent = dataclasses.replace(
        config.agent, actor_hidden_dims=widths, num_steps_per_env=16, num_mini_batches=1, num_learning_epochs=1
    )
    runner = Runner(
        Env(config.env, 4, "cpu"), dataclasses.replace(config, num_envs=4, total_num_envs=None, agent=agent), Rank()
    )
    seen: dict[str, set[int]] = {}

    def watch(owner: Any, name: str) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.setdefault(name, set()).add(torch.get_num_threads())
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, watched)

    watch(runner.env, "step")
    watch(runner.alg, "update")
    runner._iteration(runner.env.get_observations(), 1)
    assert seen == {"step": {1}, "update": {expected}}
    assert torch.get_num_threads() == 2
