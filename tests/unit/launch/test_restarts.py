"""Number of restarts and the pauses before them, with fake ranks. tests/distributed/test_faults.py uses real ranks."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import Exit, RankError
from mjlab_dist.launch import restarts
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.restarts import run_with_restarts
from mjlab_dist.launch.worker import RunResult
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.run_dir import METRICS_FILE, checkpoint_path

CPU = RankDevice(device="cpu", name="CPU", torch_threads=1, backend="gloo")


class Attempts:
    """Replaces launches of ranks. Each attempt fails after a given iteration and a given time."""

    def __init__(
        self, reached: list[int], exit_code: Exit = Exit.INFRASTRUCTURE, trained_s: tuple[float, ...] = ()
    ) -> None:
        self.reached = iter(reached)
        self.trained_s = iter(trained_s)
        self.now = 0.0
        self.exit_code = exit_code
        self.pauses: list[float] = []
        self.control = Control()

    def run_ranks(self, *_: Any, listen: Any, **__: Any) -> list[Any]:
        listen({"kind": "iteration", "row": {"iteration": next(self.reached)}})
        self.now += next(self.trained_s, 0.0)
        raise RankError("lost", exit_code=self.exit_code)

    def listen(self, event: Event) -> None:
        if event["kind"] == "warning":
            self.pauses.append(float(match[1]) if (match := re.search(r" in (\d+) s", event["text"])) else 0.0)


def run(attempts: Attempts, run_dir: Path, monkeypatch: pytest.MonkeyPatch, max_restarts: int = 500) -> RunResult:
    """Run the attempts with restarts until the run ends."""
    monkeypatch.setattr("mjlab_dist.launch.ranks.run_ranks", attempts.run_ranks)
    config = dataclasses.replace(registry.task_config("cartpole-balance"), max_restarts=max_restarts)
    plan = RunPlan(hosts=(Host(devices=(CPU, CPU)),), run_dir=run_dir)
    with listening(attempts.listen):
        return run_with_restarts(config, plan, attempts.control)


def test_pauses_double_with_every_attempt_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    attempts = Attempts([0, 3, 3, 7, 7, 9, *(n for i in range(10, 16) for n in (i, i)), 15])
    monkeypatch.setattr(Control, "wait_for_stop", lambda _, timeout_s: waited.append(timeout_s))
    with pytest.raises(RankError):
        run(attempts, tmp_path, monkeypatch)
    assert attempts.pauses == waited == [1, 0, 2, 0, 4, 0, 0, 8, 0, 16, 0, 32, 0, 60, 0, 60, 0, 60]


def test_pauses_start_again_after_a_minute_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts([0, 3, 3, 7, 7, 9, 9, 11, 11, 11], trained_s=(0, 59, 0, 60, 0, 59, 0))
    monkeypatch.setattr(restarts, "time", SimpleNamespace(monotonic=lambda: attempts.now))
    monkeypatch.setattr(Control, "wait_for_stop", lambda *_: False)
    with pytest.raises(RankError):
        run(attempts, tmp_path, monkeypatch)
    assert attempts.pauses == [1, 0, 2, 0, 1, 0, 2, 0, 4]


def test_two_attempts_in_a_row_without_progress_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.0)
    attempts = Attempts([0, 1, 1, 2, 2, 2, 3])
    with pytest.raises(RankError):
        run(attempts, tmp_path, monkeypatch)
    assert next(attempts.reached) == 3


def test_processes_on_a_machine_that_did_not_answer_are_ended_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = Host(devices=(CPU,)), Host(name="node7", devices=(CPU,))
    both = RunPlan(hosts=(here, there), run_dir=tmp_path)
    plans = iter([dataclasses.replace(both, hosts=(here,)), both, both, both])
    attempts, ended = Attempts([1, 2, 3, 4, 5]), []
    unanswered = iter([["node7"], []])

    def run_ranks(*args: Any, left: dict[str, list[str]], **kwargs: Any) -> list[Any]:
        if not left:
            left["node7"] = ["first launch"]
        return attempts.run_ranks(*args, **kwargs)

    def end_on_hosts(hosts: tuple[str, ...], _: str | None, launch: str) -> list[str]:
        ended.append((hosts, launch))
        return next(unanswered)

    monkeypatch.setattr("mjlab_dist.launch.ranks.run_ranks", run_ranks)
    monkeypatch.setattr(restarts, "regroup", lambda *_: next(plans))
    monkeypatch.setattr(restarts, "end_on_hosts", end_on_hosts)
    config = dataclasses.replace(registry.task_config("cartpole-balance"), max_restarts=4)
    with pytest.raises(RankError):
        run_with_restarts(config, both, attempts.control)
    # Not without the machine; again, because the first attempt to end them had no answer; then never again
    assert ended == [((here.name, "node7"), "first launch")] * 2


def saved_run(run_dir: Path) -> Path:
    """Write two checkpoints, and metrics up to a later iteration."""
    checkpoint_path(run_dir, 3).parent.mkdir()
    for iteration in (3, 12):
        checkpoint_path(run_dir, iteration).touch()
    rows = "".join(json.dumps({"iteration": iteration}) + "\n" for iteration in range(1, 16))
    (run_dir / METRICS_FILE).write_text(rows)
    return run_dir


def stopping(attempts: Attempts, during: str) -> Attempts:
    """Let the attempts request a stop when an event of a given kind occurs."""
    told = attempts.listen

    def listen(event: Event) -> None:
        told(event)
        if event["kind"] == during:
            attempts.control.request_stop()

    attempts.listen = listen
    return attempts


@pytest.mark.parametrize("during", ["iteration", "warning"])
@pytest.mark.parametrize("reached", [[5, 6], [0, 1]])
def test_a_run_lost_while_it_stops_is_resumable(
    during: str, reached: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 1e5)
    attempts = stopping(Attempts(reached), during)
    result = run(attempts, saved_run(tmp_path), monkeypatch)
    assert next(attempts.reached) == reached[1]
    newest = checkpoint_path(tmp_path, 12)
    assert result == RunResult(run_dir=tmp_path, checkpoint=newest, metrics={"iteration": 12}, stopped=True)


@pytest.mark.parametrize(
    ("is_saved", "max_restarts", "exit_code"),
    [(False, 9, Exit.INFRASTRUCTURE), (True, 0, Exit.INFRASTRUCTURE), (True, 9, Exit.NUMERICS)],
)
def test_a_run_that_is_not_saved_or_cannot_be_restarted_fails_also_while_it_stops(
    is_saved: bool, max_restarts: int, exit_code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = saved_run(tmp_path) if is_saved else tmp_path
    with pytest.raises(RankError):
        run(stopping(Attempts([5, 6], exit_code), "iteration"), run_dir, monkeypatch, max_restarts)
