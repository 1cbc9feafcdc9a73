"""The viewer reads the state and the progress of runs from their files, and lists runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mjlab_dist.config.registry import task_config
from mjlab_dist.errors import UserError
from mjlab_dist.messages import Event, listening
from mjlab_dist.policies.view import gate
from mjlab_dist.policies.view.runs import MAX_LISTED, Run, RunList
from mjlab_dist.runs.lease import EXPIRED_S, LEASE_FILE, Held, LeaseWatch, acquire
from mjlab_dist.runs.run_dir import to_yaml


class Clock:
    """A clock that the test advances."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _make_run(log_root: Path, name: str, task: str = "cartpole-balance") -> Path:
    run_dir = log_root / task / name
    run_dir.mkdir(parents=True)
    (run_dir / "config.yaml").write_text(to_yaml(task_config(task)))
    return run_dir


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return _make_run(tmp_path, "2026-01-01_00-00-00")


def _set(run_dir: Path, **fields: object) -> None:
    """Change top-level fields of a run's config."""
    lines = (run_dir / "config.yaml").read_text().splitlines()
    changed = [next((f"{k}: {v}" for k, v in fields.items() if line.startswith(f"{k}:")), line) for line in lines]
    (run_dir / "config.yaml").write_text("\n".join(changed))


def _add_rows(run_dir: Path, *iterations: int, name: str = "metrics.jsonl", **more: object) -> None:
    with (run_dir / name).open("a") as file:
        for n in iterations:
            row = {"iteration": n, "total_steps": 100 * n, "elapsed_s": 2.0 * n, "steps_per_s": 50.0, "mean_return": n}
            file.write(json.dumps({**row, **more}) + "\n")


def _change_lease(run_dir: Path, **fields: Any) -> None:
    file = run_dir / LEASE_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_a_lease_of_this_machine(tmp_path: Path) -> None:
    watch = LeaseWatch(tmp_path, clock := Clock())
    assert watch.look() == "no"
    lease = acquire(tmp_path)
    before = (tmp_path / LEASE_FILE).stat().st_mtime_ns
    assert watch.look() == "yes"
    assert (tmp_path / LEASE_FILE).stat().st_mtime_ns == before
    # The lease's process is alive but does not renew the lease, as in a copy of the run directory
    clock.now_s = EXPIRED_S
    assert watch.look() == "lost"
    os.utime(tmp_path / LEASE_FILE)
    assert watch.look() == "yes"
    # The lease's process has ended
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    _change_lease(tmp_path, pid=dead.pid)
    assert watch.look() == "lost"
    _change_lease(tmp_path, pid=os.getpid())
    lease.release()
    assert watch.look() == "no"


def test_a_lease_of_another_machine(tmp_path: Path) -> None:
    watch = LeaseWatch(tmp_path, clock := Clock())
    acquire(tmp_path)
    _change_lease(tmp_path, system="another machine")
    assert watch.look() == "unknown"
    clock.now_s = 5.0
    os.utime(tmp_path / LEASE_FILE, (1.0, 1.0))
    assert watch.look() == "yes"
    clock.now_s = 4.9 + EXPIRED_S
    assert watch.look() == "yes"
    clock.now_s = 5.0 + EXPIRED_S
    assert watch.look() == "lost"
    # The file is being written
    (tmp_path / LEASE_FILE).write_text("{")
    assert watch.look() == "yes"


def test_a_run_from_its_start_to_its_end(run_dir: Path) -> None:
    _set(run_dir, max_iterations=10)
    lease = acquire(run_dir)
    run = Run(run_dir, Clock())
    assert (run.task, run.state, run.progress) == ("cartpole-balance", "running", "no iteration yet")
    _add_rows(run_dir, 1, 2)
    run.look()
    assert run.progress == "iteration 2 of 10, 0:00:16 left, 50 steps/s"
    # The run is resumed from an earlier iteration, which removes later rows
    (run_dir / "metrics.jsonl").unlink()
    _add_rows(run_dir, 1)
    run.look()
    assert run.progress.startswith("iteration 1 of 10, ")
    # The run is stopped, and later finished
    lease.release()
    run.look()
    assert (run.state, run.progress) == ("stopped", "iteration 1 of 10, 50 steps/s")
    _add_rows(run_dir, *range(2, 11))
    run.look()
    assert run.state == "finished"
    _set(run_dir, max_iterations=20)  # resumed with more iterations
    run.look()
    assert run.state == "stopped"


def test_a_run_with_a_number_of_steps(run_dir: Path) -> None:
    _set(run_dir, total_timesteps=1050)
    _add_rows(run_dir, 1)
    run = Run(run_dir, Clock())
    assert run.iterations == 10
    _add_rows(run_dir, 2, 3, 10)
    run.look()
    assert (run.iterations, run.state) == (10, "finished")
    _add_rows(run_dir, 11, total_steps=None)  # not a row that our runs write
    run.look()


def test_rows_of_ranks(run_dir: Path) -> None:
    run = Run(run_dir, Clock())
    assert run.ranks == {}
    for n in (1, 2):
        for rank in (0, 1):
            _add_rows(run_dir, n, name="rank_metrics.jsonl", rank=rank, mean_return=10.0 * rank + n)
    run.look()
    assert {rank: history.column("mean_return") for rank, history in run.ranks.items()} == {0: [1, 2], 1: [11, 12]}
    (run_dir / "rank_metrics.jsonl").unlink()
    _add_rows(run_dir, 1, name="rank_metrics.jsonl", rank=0)
    run.look()
    assert list(run.ranks) == [0]


def test_checkpoints_without_links_and_incomplete_files(run_dir: Path) -> None:
    run = Run(run_dir, Clock())
    folder = run_dir / "checkpoints"
    folder.mkdir()
    for name in ("model_10.pt", "model_9.pt", ".model_11.pt.1.tmp", "model_12.pt.unreadable"):
        (folder / name).touch()
    (folder / "latest.pt").symlink_to("model_10.pt")
    run.look()
    assert list(run.checkpoints) == [9, 10]


def test_runs_of_all_tasks_are_listed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    runs = RunList(str(logs), Clock())
    elsewhere = _make_run(tmp_path / "copies", "copied", "template")
    assert [one.run_dir for one in runs.look(elsewhere)] == [elsewhere]
    for number in range(MAX_LISTED + 3):
        _make_run(logs, f"2026-01-01_00-{number:02}-00")
    newest = _make_run(logs, "2026-01-02_00-00-00", "template")
    _set(newest, max_iterations=3)
    (logs / "template" / "no-run").mkdir()
    found = runs.look(newest)
    assert len(found) == MAX_LISTED
    assert found[0].run_dir == newest
    assert (found[0].task, found[0].state) == ("template", "stopped")
    assert (found[0].iteration, found[0].mean_return) == (None, None)
    assert found[1].task == "cartpole-balance"
    # While the run trains, its last row is incomplete. Then the run completes the row, and ends
    lease = acquire(newest)
    _add_rows(newest, 1, 2)
    with (newest / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 3, ')
    first = runs.look(newest)[0]
    assert (first.state, first.iteration, first.mean_return) == ("running", 2, 2.0)
    with (newest / "metrics.jsonl").open("a") as file:
        file.write('"total_steps": 300}\n')
    lease.release()
    first = runs.look(elsewhere)[1]
    assert (first.state, first.iteration, first.mean_return) == ("finished", 3, None)


def test_a_run_directory_that_disappears(run_dir: Path, tmp_path: Path) -> None:
    run = Run(run_dir, Clock())
    run_dir.rename(tmp_path / "moved")
    run.look()
    assert run.checkpoints == {}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", "max_iterations: " + "9" * 5000),
        ("config.yaml", 100_000 * "["),
        ("config.yaml", "\0task: \0\n"),
        ("metrics.jsonl", '{"iteration": 1, "x": ' + 100_000 * "[" + 100_000 * "]" + "}\n"),
        ("metrics.jsonl", '{"iteration": 1, "mean_return": ' + "9" * 400 + ', "total_steps": [], "elapsed_s": "x"}\n'),
        ("metrics.jsonl", '{"iteration": 1, "elapsed_s": 1e99, "steps_per_s": -1e99, "total_steps": 1e99}\n'),
        ("rank_metrics.jsonl", '{"iteration": 1, "rank": []}\n{"iteration": 1, "rank": "x"}\n{"iteration": 1}\n'),
        ("lease.json", "[]"),
    ],
)
def test_files_of_one_run_that_no_run_writes_leave_the_others_alone(tmp_path: Path, name: str, content: str) -> None:
    first, last = (_make_run(tmp_path, f"2026-01-0{day}_00-00-00") for day in (1, 3))
    odd = _make_run(tmp_path, "2026-01-02_00-00-00")
    _set(odd, total_timesteps=1000)
    acquire(odd)
    (odd / name).write_text(content)
    found = RunList(str(tmp_path), Clock()).look(first)
    assert [one.run_dir for one in found] == [last, odd, first]
    run = Run(odd, Clock())
    assert run.look() is False
    assert run.progress
    for history in (run.history, *run.ranks.values()):
        assert all(isinstance(value, float) for value in history.column("mean_return"))


def test_a_run_that_cannot_be_read_is_listed_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_reported", set())
    good, bad = (_make_run(tmp_path, f"2026-01-0{day}_00-00-00") for day in (1, 2))
    look = LeaseWatch.look

    def look_or_fail(watch: LeaseWatch) -> Held:
        if watch._path.parent == bad:
            raise UserError("lease.json: is damaged\x1b[2J")
        return look(watch)

    monkeypatch.setattr(LeaseWatch, "look", look_or_fail)
    events: list[Event] = []
    with listening(events.append):
        found = RunList(str(tmp_path), Clock()).look(good)
        run = Run(bad, Clock())
    assert [(one.run_dir, one.state) for one in found] == [(bad, "unreadable"), (good, "stopped")]
    assert (run.state, run.progress) == ("unreadable", "no iteration yet")
    assert [event["text"] for event in events] == [
        r"the viewer continues after an error: lease.json: is damaged\x1b[2J"
    ]
    monkeypatch.undo()
    run.look()
    assert run.state == "stopped"
