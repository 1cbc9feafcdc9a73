"""A rank that builds its envs again, with larger buffers, is not mistaken for one that hangs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mjlab_dist
from mjlab_dist.config import TrainConfig
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import BufferOverflowError
from mjlab_dist.launch.worker import Learner
from mjlab_dist.messages import Event, listening


def test_the_watchdog_pauses_and_the_launcher_hears_of_it_before_envs_are_built_again() -> None:
    config, control, events = mjlab_dist.task_config("cartpole-balance"), Control(), list[Event]()
    hooks: list[Any] = [object()]

    def build(new: TrainConfig) -> Any:
        assert new.env.sim.njmax == 7
        assert control.last_beat is None
        assert [(event["kind"], event["rank"]) for event in events] == [("step", 1)]
        return mock.Mock(**{"train.return_value": {"iteration": 3}})

    first = mock.Mock(**{"train.side_effect": BufferOverflowError("full", {"njmax": 7})})
    first.hooks, first.env.device = hooks, "cpu"
    info: Any = SimpleNamespace(rank=1)
    learner = Learner(config=config, run_dir=Path(), info=info, runner=first, build=build)
    control.beat(2)
    with listening(events.append), contextlib.ExitStack() as parting:
        assert learner.train(control, parting) == {"iteration": 3}
    assert learner.runner.hooks is hooks
