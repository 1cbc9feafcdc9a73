"""User-defined loggers, several loggers at once, and loggers that fail."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mjlab_dist.config import registry
from mjlab_dist.errors import UserError
from mjlab_dist.learn.loggers import check_loggers
from mjlab_dist.learn.loggers.all_loggers import LoggerGroup
from mjlab_dist.learn.metrics import Row
from mjlab_dist.messages import Event, listening

OWN = """
import mjlab_dist

calls = []

class Complete(mjlab_dist.Logger):
    def __init__(self, run_dir, config, resumed_at):
        calls.append(("init", run_dir, config.task, resumed_at))

    def log(self, row, step):
        calls.append(("log", row, step))

    def video(self, file, iteration):
        calls.append(("video", file, iteration))

    def checkpoint(self, file, iteration):
        calls.append(("checkpoint", file, iteration))

    def close(self):
        calls.append(("close",))

class Second(Complete):
    pass

class OnlyLog(mjlab_dist.Logger):
    def log(self, row, step):
        calls.append(("log", row, step))
        row.clear()

class Derived(mjlab_dist.Logger):
    pass

class Duck:
    def __init__(self, run_dir, config, resumed_at=None):
        pass

    log = video = checkpoint = close = print

class WithoutVideo:
    def __init__(self, run_dir, config, resumed_at):
        pass

    log = close = print

class MoreArguments(Complete):
    def __init__(self, run_dir, config, resumed_at, more):
        pass
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Write modules with loggers. Return a function that takes a name, and returns that attribute of own_loggers."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "own_loggers.py").write_text(OWN)
    (tmp_path / "modules" / "broken_loggers.py").write_text("import math\nmath.no_such_name\n")
    (tmp_path / "modules" / "exiting_loggers.py").write_text("raise SystemError('no\\nway')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    for name in ("own_loggers", "broken_loggers", "exiting_loggers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return lambda name: getattr(importlib.import_module("own_loggers"), name)


def row(iteration: int) -> Row:
    return {"iteration": iteration, "mean_return": 0.5 * iteration, "collect_s": 0.25, "loss/value": None}


def group(run_dir: Path, *names: str, resumed_at: int | None = None) -> LoggerGroup:
    run_dir.mkdir(exist_ok=True)
    config = dataclasses.replace(registry.task_config("cartpole-balance"), logger=names)
    return LoggerGroup(config, run_dir, resumed_at)


def curve(run_dir: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(run_dir), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_several_loggers_receive_the_same(tmp_path: Path, own: Callable[[str], Any]):
    run_dir = tmp_path / "run"
    made = group(run_dir, "own_loggers:OnlyLog", "tensorboard", "own_loggers:Complete", resumed_at=4)
    ranks: list[Row] = [{"iteration": 5, "rank": rank, "steps_per_s": 8.0 * rank} for rank in range(2)]
    made.write(row(5), ranks)
    made.write(row(6))
    made.close()
    values = {"train/mean_return": 2.5, "perf/collect_s": 0.25, "rank_steps_per_s/0": 0.0, "rank_steps_per_s/1": 8.0}
    assert own("calls") == [
        ("init", run_dir, "cartpole-balance", 4),
        ("log", {}, 5),  # OnlyLog has cleared its copy of the row
        ("log", values, 5),
        ("log", {}, 6),
        ("log", {"train/mean_return": 3.0, "perf/collect_s": 0.25}, 6),
        ("close",),
    ]
    assert curve(run_dir, "train/mean_return") == [(5, 2.5), (6, 3.0)]
    assert curve(run_dir, "rank_steps_per_s/1") == [(5, 8.0)]


def test_without_loggers_nothing_is_written(tmp_path: Path):
    made = group(tmp_path / "run")
    made.write(row(1))
    made.video(tmp_path / "a.mp4", 1)
    made.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_video_reaches_every_logger(tmp_path: Path, own: Callable[[str], Any]):
    made = group(tmp_path / "run", "own_loggers:Complete", "own_loggers:OnlyLog", "own_loggers:Second")
    made.video(tmp_path / "a.mp4", 7)
    assert [call for call in own("calls") if call[0] == "video"] == [("video", tmp_path / "a.mp4", 7)] * 2
    made.checkpoint(tmp_path / "model_3.pt", 3)
    assert own("calls")[-2:] == [("checkpoint", tmp_path / "model_3.pt", 3)] * 2


@pytest.mark.parametrize("error", [ValueError("no\nway"), SystemExit(3), KeyError("x")], ids=repr)
@pytest.mark.parametrize("method", ["__init__", "log", "video", "checkpoint", "close"])
def test_training_continues_without_a_logger_that_fails_after_one_warning(
    tmp_path: Path, own: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
):
    tried: list[tuple[Any, ...]] = []

    def fail(*args: Any) -> None:
        tried.append(args)
        raise error

    monkeypatch.setattr(own("Complete"), method, fail)
    events: list[Event] = []
    with listening(events.append):
        made = group(tmp_path / "run", "own_loggers:Complete", "tensorboard")
        for iteration in range(1, 4):
            made.write(row(iteration))
            made.loggers[0].video(tmp_path / "a.mp4", iteration)
            made.loggers[0].checkpoint(tmp_path / "model_1.pt", iteration)
        made.close()
    assert len(tried) == 1, "a logger that has failed is not called again"
    (warning,) = (event["text"] for event in events if event["kind"] == "warning")
    assert warning.startswith("logger own_loggers:Complete failed ")
    assert {"__init__": "created", "close": "in close()"}.get(method, f"in {method}() at iteration 1") in warning
    assert f"({type(error).__name__}: {error}".partition("\n")[0] in warning
    assert "\n" not in warning
    (debug,) = (event["text"] for event in events if event["kind"] == "debug")
    assert "in fail" in debug
    assert curve(tmp_path / "run", "train/mean_return") == [(i, 0.5 * i) for i in range(1, 4)]


def test_an_interrupt_in_a_logger_ends_training(
    tmp_path: Path, own: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(own("Complete"), "log", interrupt)
    made = group(tmp_path / "run", "own_loggers:Complete")
    with pytest.raises(KeyboardInterrupt):
        made.write(row(1))


@pytest.mark.usefixtures("own")
def test_classes_with_the_methods_are_accepted():
    check_loggers(("tensorboard", *(f"own_loggers:{name}" for name in ("Complete", "OnlyLog", "Duck"))))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no_such_module:Class", "No module named 'no_such_module'"),
        ("own_loggers:Nothing", "Nothing"),
        ("own_loggers:", "own_loggers"),
        ("broken_loggers:Class", "no_such_name"),
        ("exiting_loggers:Class", "(no)"),
        ("own_loggers:Derived", "has no method log"),
        ("own_loggers:WithoutVideo", "has no method video"),
        ("own_loggers:MoreArguments", "'more'"),
    ],
)
@pytest.mark.usefixtures("own")
def test_other_classes_are_refused_in_one_line(name: str, problem: str):
    with pytest.raises(UserError) as caught:
        check_loggers((name,))
    message = str(caught.value)
    assert message.startswith(f"--logger {name}: ")
    assert problem in message
    assert "; " in message, "the message names the fix"
    assert "\n" not in message
