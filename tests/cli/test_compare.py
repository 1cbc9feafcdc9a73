"""Comparison of runs: groups, statistics, differences, pictures, pages."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from configs import changed
from conftest import Command

from mjlab_dist.config import RewardConfig, TrainConfig, registry, reward
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import rewards
from mjlab_dist.messages import Event, listening
from mjlab_dist.runs.compare import Group, curve, find_runs, group_runs, read_groups, read_run
from mjlab_dist.runs.provenance import write_origin
from mjlab_dist.runs.run_dir import METRICS_FILE

CONFIG = registry.task_config("cartpole-balance")


def make_run(run_dir: Path, returns: Sequence[float | None], config: TrainConfig = CONFIG, num_ranks: int = 1) -> Path:
    """Write the files of a run with 100 control steps and 2 s per iteration."""
    run_dir.mkdir(parents=True)
    write_origin(run_dir, config, ["train"], ["cpu"] * num_ranks)
    rows = [
        {"iteration": i, "total_steps": 100 * i, "elapsed_s": 2.0 * i, "mean_return": value}
        for i, value in enumerate(returns, start=1)
    ]
    (run_dir / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with three runs that differ only in the seed, and two runs with a different learning rate.

    Next to this directory are the runs `young`, which has no return yet, and `empty`, which has no metrics.
    """
    place = tmp_path_factory.mktemp("compare")
    make_run(place / "young", [None])
    (make_run(place / "empty", []) / METRICS_FILE).unlink()
    for seed, last in enumerate((10.0, 14.0, 21.0), start=1):
        own = dataclasses.replace(CONFIG, seed=seed, gpu_ids=(seed,))
        make_run(place / "runs" / f"a{seed}", [None, 1.0, 5.0, last], own)
    for seed in (1, 2):
        own = changed(dataclasses.replace(CONFIG, seed=seed), "agent.learning_rate", 3e-4)
        make_run(place / "runs" / f"b{seed}", [None, 2.0, 8.0], own)
    return place / "runs"


def compared(command: Command, *words: str) -> dict[str, Any]:
    done = command.here("mjlab-dist", "compare", *words, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.slow
def test_seeds_form_groups_with_figures(command: Command, runs: Path):
    result = compared(command, str(runs), "--threshold", "10")
    first, second = result["groups"]
    assert [len(one["runs"]) for one in (first, second)] == [3, 2]
    assert first["final"] == [10, 14, 21]
    assert first["mean"] == pytest.approx(15)
    assert first["std"] == pytest.approx(statistics.stdev([10, 14, 21]))
    assert 10 <= first["iqm_low"] < first["iqm"] < first["iqm_high"] <= 21
    assert first["reached"] == {"num_runs": 3, "steps": 400, "seconds": 8}
    assert second["reached"] == {"num_runs": 0, "steps": None, "seconds": None}
    assert (second["std"], second["iqm_low"], second["iqm_high"]) == (0, 8, 8)
    assert (first["steps"], first["seconds"]) == (400, 8)
    assert result["configs"] == {"agent.learning_rate": [CONFIG.agent.learning_rate, 3e-4]}
    assert first["name"] == f"learning_rate {CONFIG.agent.learning_rate}"
    assert not result["origins"]


@pytest.mark.slow
def test_the_tables_and_the_page_show_the_same(command: Command, runs: Path):
    done = command.here("mjlab-dist", "compare", str(runs), "--threshold", "10", "--output", "page.html")
    assert done.code == 0, done.err
    page = (command.cwd / "page.html").read_text()
    for text in ("15 ± 5.57", "3 of 3", "0 of 2", "agent.learning_rate", "0.0003"):
        assert text in done.out
        assert text in page
    assert "<svg" in page
    assert not re.search(r"(src|href)=.?(https?:)?//", page), "loads nothing from elsewhere"
    again = command.here(
        "mjlab-dist", "compare", str(runs), "--band", "iqm", "--over", "time", "--output", "curves.png"
    )
    assert again.code == 0, again.err
    assert iio.imread(command.cwd / "curves.png").std() > 10


def test_ranks_terms_and_tasks_make_groups(tmp_path: Path):
    one = make_run(tmp_path / "one", [1.0])
    two = make_run(tmp_path / "two", [1.0], num_ranks=2)
    other = make_run(tmp_path / "other", [1.0], registry.task_config("cartpole-swingup"))
    groups = group_runs([read_run(path, "mean_return") for path in (one, two)])
    assert [group.name for group in groups] == ["ranks 1", "ranks 2"]
    extended = changed(CONFIG, "env.rewards", {**CONFIG.env.rewards, "own": reward(-0.1, rewards.action_rate)})
    read = [read_run(path, "mean_return") for path in (one, make_run(tmp_path / "own", [1.0], extended))]
    assert [group.name for group in group_runs(read)] == ["without rewards.own", "with rewards.own"]
    stronger = changed(extended, "env.rewards.own.weight", -0.2)
    read.append(read_run(make_run(tmp_path / "stronger", [1.0], stronger), "mean_return"))
    assert [group.name for group in group_runs(read)] == [
        "without rewards.own",
        "with rewards.own, rewards.own.weight -0.1",
        "with rewards.own, rewards.own.weight -0.2",
    ]
    groups = group_runs([read_run(path, "mean_return") for path in (one, other)])
    assert [group.name for group in groups] == ["cartpole-balance", "cartpole-swingup"]


def test_curves_are_interpolated_up_to_the_end_of_the_shortest_run(tmp_path: Path):
    paths = [make_run(tmp_path / "long", [None, 0.0, 2.0, 4.0]), make_run(tmp_path / "short", [2.0, 4.0, 6.0])]
    group = Group(name="", runs=[read_run(path, "mean_return") for path in paths])
    found = curve(group, "mean_return", "steps", "std")
    assert (found.x[0], found.x[-1]) == (200, 300)
    assert found.low is not None
    assert np.allclose(found.middle, np.linspace(2, 4, len(found.x)))
    assert np.allclose(found.middle - found.low, np.sqrt(8))


def test_runs_without_a_value_are_left_out_unless_they_are_named(tmp_path: Path):
    logs = tmp_path / "logs" / "task"
    good, young, empty = make_run(logs / "1", [1.0]), make_run(logs / "2", [None]), make_run(logs / "3", [])
    started = make_run(logs / "0", [])
    (empty / METRICS_FILE).unlink()
    events: list[Event] = []
    with listening(events.append):
        (group,) = read_groups(find_runs([str(logs)], ""), "mean_return", of_ranks=False)
        read_groups(find_runs([str(good), "latest"], str(tmp_path / "logs")), "mean_return", of_ranks=False)
    assert [run.path for run in group.runs] == [good]
    assert [event["text"].partition(":")[0] for event in events] == [str(started), str(young), str(empty), str(empty)]
    good.rename(tmp_path / "good")
    for words in ([str(logs)], [str(tmp_path / "good"), str(young)], [str(tmp_path / "good"), str(empty)]):
        with pytest.raises(UserError):
            read_groups(find_runs(words, ""), "mean_return", of_ranks=False)


def test_nothing_that_a_config_names_is_imported(command: Command, tmp_path: Path):
    (tmp_path / "evil.py").write_text("open('executed', 'w')\ndef term(env): pass\n")
    config = changed(CONFIG, "env.rewards", {"evil": RewardConfig(func="evil:term", weight=1.0)})
    foreign = make_run(tmp_path / "foreign", [1.0], config)
    done = command("mjlab-dist", "compare", str(foreign), env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 0, done.err
    assert not (command.cwd / "executed").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "RUN"),
        (("nowhere",), "nowhere"),
        (("latest", "--log-root", "nowhere"), "nowhere"),
        (("runs/a1", "runs/a1"), "runs/a1"),
        (("runs", "--metric", "mean_retrun"), "mean_return"),
        (("runs", "--metric", "nothing_like_it"), "its metrics.jsonl"),
        (("runs", "--output", "curves.pdf"), "--output"),
        (("runs", "--output", "nowhere/curves.png"), "--output"),
        (("empty",), "empty: has no rows in metrics.jsonl"),
        (("young",), "young: has no value of mean_return"),
    ],
)
def test_mistakes_are_refused_in_one_line(command: Command, runs: Path, words: tuple[str, ...], named: str):
    command.cwd = runs.parent
    done = command.here("mjlab-dist", "compare", *words)
    assert {path.name for path in command.cwd.iterdir()} == {"runs", "young", "empty"}
    assert done.code == 2
    assert not done.out
    (line,) = done.err.splitlines()
    assert named in line
