"""Evaluation of policies: equal results on any number of ranks, values varied by flags, exit codes, pictures."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import pytest
from conftest import Command

from mjlab_dist import policies
from mjlab_dist.config import EvaluateConfig, PlayConfig, TrainConfig, registry
from mjlab_dist.config.dotted_names import with_values
from mjlab_dist.distributed import RankDevice
from mjlab_dist.machine import devices
from mjlab_dist.policies import evaluate as evaluate_module
from mjlab_dist.policies.evaluate import Job, evaluate

TASK = "quadruped-velocity-flat"
SHORT = ("--env.episode-length-s", "0.2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a run of a quadruped, trained for one iteration."""
    place = tmp_path_factory.mktemp("evaluate")
    done = Command("trained", place).here(
        "train", TASK, "--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "1"
    )
    assert done.code == 0, done.err
    return place


def evaluated(command: Command, *flags: str, code: int = 0) -> list[dict[str, Any]]:
    done = command.here("mjlab-dist", "evaluate", TASK, *SHORT, "--json", *flags)
    assert done.code == code, done.err
    return json.loads(done.out)["results"]


def test_results_do_not_depend_on_the_number_of_ranks(command: Command, trained: Path):
    command.cwd = trained
    # For each push and each kind of actions, the 6 episodes run in two batches, of 4 envs and of 2 envs
    flags = ("--num-episodes", "6", "--num-envs", "4", "--actions", "both", "--vary", "push=0,1")
    alone = evaluated(command, "--cpu-ranks", "1", *flags)
    assert evaluated(command, "--cpu-ranks", "2", *flags) == alone
    assert [(one["varied"]["push"], one["actions"]) for one in alone] == [
        (0.0, "mean"), (0.0, "sampled"), (1.0, "mean"), (1.0, "sampled"),
    ]  # fmt: skip
    assert {one["num_episodes"] for one in alone} == {6}
    returns = [one["columns"]["return"]["mean"] for one in alone]
    assert len(set(returns[:2])) == 2, "sampled actions differ"
    for one in alone:
        columns = one["columns"]
        terms = [value["mean"] for name, value in columns.items() if name.startswith("reward/")]
        assert sum(terms) == pytest.approx(columns["return"]["mean"], rel=1e-4, abs=1e-5)
        assert columns["length"]["mean"] == 10
        assert columns["termination/time_limit"]["mean"] == 1
        assert "command/velocity/error_m_s" in columns


@pytest.mark.parametrize(("num_cores", "num_ranks", "num_threads"), [(1, 1, 1), (2, 2, 1), (8, 3, 2)])
def test_each_core_has_a_rank_by_default_if_there_are_enough_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_cores: int, num_ranks: int, num_threads: int
):
    class StartedError(Exception):
        pass

    def start(_job: Job, _config: TrainConfig, ranks: tuple[RankDevice, ...]) -> None:
        assert [device.torch_threads for device in ranks] == [num_threads] * num_ranks
        raise StartedError

    for module in (evaluate_module, devices):
        monkeypatch.setattr(module, "cores", lambda: num_cores)
    monkeypatch.setattr(evaluate_module, "_play", start)
    asked = EvaluateConfig(num_episodes=9, num_envs=4, gpu_ids=None)
    with pytest.raises(StartedError):
        evaluate(registry.task_config(TASK), tmp_path, asked)


def test_play_counts_the_same_episodes(trained: Path):
    num_envs = 6
    chosen = PlayConfig(log_root=str(trained / "logs"), num_envs=num_envs, seed=3)
    config, checkpoint = policies.resolve(TASK, chosen)
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, episode_length_s=0.4))
    played = policies.play(config, checkpoint, chosen)
    asked = EvaluateConfig(num_episodes=num_envs, num_envs=num_envs, seed=3, gpu_ids=None)
    (result,) = evaluate(config, checkpoint, asked)
    returns, error = result.columns["return"], 1.96 * statistics.stdev(played.returns) / math.sqrt(num_envs)
    assert returns.mean == pytest.approx(statistics.mean(played.returns), rel=1e-5)
    assert (returns.low, returns.high) == pytest.approx((returns.mean - error, returns.mean + error), rel=1e-5)
    assert result.columns["length"].mean == pytest.approx(statistics.mean(played.lengths))
    for name, value in played.outcomes.items():
        assert result.columns[name].mean == pytest.approx(value, rel=1e-5, abs=1e-7)


def test_varied_values_reach_the_env_and_the_pictures(command: Command, trained: Path):
    command.cwd = trained
    flags = ("--gpu-ids", "None", "--num-episodes", "2")
    results = evaluated(command, *flags, "--vary", "env.episode_length_s=0.1:0.3:3", "--plot", "line.png")
    assert [one["columns"]["length"]["mean"] for one in results] == [5, 10, 15]
    results = evaluated(
        command, *flags, "--vary", "env.episode_length_s=0.1,0.2", "--vary", "friction=1", "--plot", "map.png"
    )
    assert [one["varied"] for one in results] == [
        {"env.episode_length_s": 0.1, "friction": 1.0}, {"env.episode_length_s": 0.2, "friction": 1.0},
    ]  # fmt: skip
    for picture in ("line.png", "map.png"):
        assert iio.imread(trained / picture).std() > 10


def test_the_exit_code_depends_on_the_return(command: Command, trained: Path):
    command.cwd = trained
    flags = ("--gpu-ids", "None", "--num-episodes", "2")
    (result,) = evaluated(command, *flags, "--min-return", "-1e6")
    too_high = result["columns"]["return"]["mean"] + 1.0
    done = command.here(
        "mjlab-dist", "evaluate", TASK, *SHORT, *flags, "--actions", "both", "--min-return", str(too_high)
    )
    assert done.code == 1
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if "│" in line]
    assert [name for name, _, _ in rows] == list(result["columns"])
    assert rows[0][1].startswith(f"{result['columns']['return']['mean']:.4g} ± ")


@pytest.mark.parametrize(
    "flags",
    [
        ("--run", "nowhere"),
        ("--checkpoint", "model_9.pt"),
        ("--num-episodes", "0"),
        ("--num-envs", "0"),
        ("--seed", "-1"),
        ("--vary", "nothing=1"),
        ("--vary", "push"),
        ("--cpu-ranks", "0"),
        ("--min-return", "nan"),
        ("--plot", "plot.png"),
        ("--plot", "plot.jpg", "--vary", "push=1"),
        ("--plot", "nowhere/plot.png", "--vary", "push=1"),
        ("--plot", "plot.png", "--vary", "push=1", "friction=1", "trunk_mass=1"),
    ],
)
def test_mistakes_are_refused_in_one_line(command: Command, trained: Path, flags: tuple[str, ...]):
    command.cwd = trained
    done = command.here("mjlab-dist", "evaluate", TASK, "--gpu-ids", "None", *flags)
    assert done.code == 2
    assert not done.out
    (line,) = done.err.splitlines()
    assert flags[0] in line


def test_another_task_and_no_task_are_refused(command: Command, trained: Path):
    command.cwd = trained
    run = next((trained / "logs" / TASK).iterdir())
    for words in (("gym-ant", "--run", str(run)), ("no-such-task",), ()):
        done = command.here("mjlab-dist", "evaluate", *words, "--gpu-ids", "None")
        assert done.code == 2, words
        assert len(done.err.splitlines()) == 1


def test_a_run_is_evaluated_whatever_hosts_and_mini_batches_it_was_trained_with(trained: Path):
    config, checkpoint = policies.resolve(TASK, PlayConfig(log_root=str(trained / "logs")))
    changes = {"hosts": ["localhost", "node7"], "min_hosts": 1, "max_restarts": 1, "agent.num_mini_batches": 7}
    config = with_values(config, {**changes, "env.episode_length_s": 0.1})
    (result,) = evaluate(config, checkpoint, EvaluateConfig(num_episodes=2, num_envs=2, gpu_ids=None))
    assert result.num_episodes == 2
