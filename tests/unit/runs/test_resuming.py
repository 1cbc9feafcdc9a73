"""--resume auto: which run it resumes, and which runs it refuses."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command

import mjlab_dist
from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.launch.train import train
from mjlab_dist.runs.run_dir import (
    CONFIG_FILE,
    check_same_run,
    checkpoint_path,
    choose_checkpoint,
    find_any_run,
    find_named_run,
    find_run,
    find_run_to_resume,
    is_complete,
    to_yaml,
)

TASK = "cartpole-balance"


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    return dataclasses.replace(registry.task_config(TASK), log_root=str(tmp_path), run_name="a")


def add_run(config: TrainConfig, name: str, iteration: int | None = 1) -> Path:
    """Create a run directory with a given name, and a checkpoint unless the iteration is None."""
    run_dir = Path(config.log_root, TASK, name)
    run_dir.mkdir(parents=True)
    (run_dir / CONFIG_FILE).write_text(to_yaml(config))
    if iteration is not None:
        path = checkpoint_path(run_dir, iteration)
        path.parent.mkdir()
        path.touch()
    return run_dir


def test_the_newest_run_of_the_name_is_found(config: TrainConfig):
    assert find_named_run(config.log_root, TASK, "a") is None
    add_run(config, "2026-01-31_12-00-00_a")
    ninth = add_run(config, "2026-01-31_12-00-01-9_a")
    newest = add_run(config, "2026-01-31_12-00-01-10_a")
    for other in ("2026-01-31_12-00-02_b_a", "2026-01-31_12-00-02_a_b", "2026-01-31_12-00-02_A", "2026-01-31_12-00-02"):
        add_run(config, other)
    add_run(config, "2026-01-31_12-00-03_a", iteration=None)  # ended before its first checkpoint
    assert find_named_run(config.log_root, TASK, "a") == newest
    checkpoint_path(newest, 1).unlink()
    assert find_named_run(config.log_root, TASK, "a") == ninth
    assert find_named_run(config.log_root, "cartpole-swingup", "a") is None


@pytest.mark.parametrize("name", ["2-x", "a.b", "[a]", "_", "12-00-00_a"])
def test_any_name_that_a_run_can_have_is_found(config: TrainConfig, name: str):
    run = add_run(config, f"2026-01-31_12-00-00_{name}")
    assert find_named_run(config.log_root, TASK, name) == run


def test_a_run_is_found_by_the_name_of_its_directory_or_its_run_name(config: TrainConfig):
    older = add_run(config, "2026-01-31_12-00-00_a")
    newer = add_run(config, "2026-01-31_12-00-01_a")
    for find in (
        lambda run: find_run(config.log_root, TASK, run),
        lambda run: find_any_run(config.log_root, run),
        lambda run: find_run_to_resume(config.log_root, None, run),
        lambda run: find_run_to_resume(config.log_root, TASK, run),
    ):
        assert find("a") == newer
        assert find(older.name) == older
        with pytest.raises(UserError, match=r"^(--run |--resume )?b: is not a run directory"):
            find("b")


@pytest.mark.parametrize("name", ["1", "model_1.pt"])
def test_a_checkpoint_is_chosen_by_its_iteration_or_its_file(config: TrainConfig, name: str):
    run = add_run(config, "2026-01-31_12-00-00")
    assert choose_checkpoint(run, name) == checkpoint_path(run, 1)
    with pytest.raises(UserError, match=r"^--checkpoint 3: .* 1$"):
        choose_checkpoint(run, "3")
    with pytest.raises(UserError, match=r"^--checkpoint 9+: "):
        choose_checkpoint(run, "9" * 5000)  # more digits than Python converts to a number


def test_resume_auto_without_a_run_name_is_refused(config: TrainConfig):
    with pytest.raises(UserError, match=r"^--resume auto: .*--run-name"):
        find_named_run(config.log_root, TASK, "")


def test_a_run_with_another_seed_is_refused(config: TrainConfig):
    started = dataclasses.replace(config, resume="logs/run")
    check_same_run(dataclasses.replace(config, num_envs=7), started)
    with pytest.raises(UserError, match=r"^--resume auto: logs/run has this --run-name, but seed 1 instead of 2;"):
        check_same_run(dataclasses.replace(config, seed=2), started)


def test_a_run_is_complete_at_its_last_iteration(config: TrainConfig):
    run_dir = add_run(config, "2026-01-31_12-00-00_a", iteration=20)
    assert is_complete(run_dir, dataclasses.replace(config, max_iterations=20))
    assert not is_complete(run_dir, dataclasses.replace(config, max_iterations=21))
    assert not is_complete(run_dir, dataclasses.replace(config, total_timesteps=1, max_iterations=20))


@pytest.mark.slow
def test_from_python_the_first_call_starts_the_run_and_the_next_resumes_it(tmp_path: Path):
    fields = {"num_envs": 8, "gpu_ids": None, "agent.num_steps_per_env": 4, "log_root": str(tmp_path), "quiet": True}
    first = mjlab_dist.train(TASK, resume="auto", run_name="a", max_iterations=1, **fields)
    second = mjlab_dist.train(TASK, resume="auto", run_name="a", max_iterations=2, **fields)
    other = mjlab_dist.train(TASK, resume="auto", run_name="b", max_iterations=1, init_from=second.checkpoint, **fields)
    assert first.run_dir == second.run_dir != other.run_dir
    assert list(second.history["iteration"]) == [1, 2]
    with pytest.raises(UserError, match=r"^--resume auto: .*seed 1 instead of 5"):
        mjlab_dist.train(TASK, resume="auto", run_name="a", seed=5, **fields)
    # A run that started from another run's checkpoint resumes from its own checkpoint
    again = mjlab_dist.train(TASK, resume=str(other.run_dir), max_iterations=2, **fields)
    assert list(again.history["iteration"]) == [1, 2]


@pytest.mark.slow
def test_of_two_starts_at_once_one_starts_the_run(command: Command, wait_for: Callable[[Callable[[], bool]], None]):
    flags = ("--gpu-ids", "None", "--num-envs", "8", "--run-name", "a", "--resume", "auto")
    both = [command.start("train", TASK, *flags, "--max-iterations", "100000") for _ in range(2)]
    wait_for(lambda: any(one.poll() is not None for one in both))
    refused, trains = sorted(both, key=lambda one: one.poll() is None)
    refusal = command.finish(refused)
    assert refusal.code == Exit.USAGE, refusal.err
    assert re.match(r"train: --resume .*: process \d+ on .* is training this run", refusal.err)
    wait_for(lambda: any(rows.stat().st_size > 1000 for rows in (command.cwd / "logs").glob("*/*/metrics.jsonl")))
    trains.send_signal(signal.SIGTERM)
    assert command.finish(trains).code == Exit.RESUMABLE
    runs = list((command.cwd / "logs" / TASK).iterdir())
    assert len(runs) == 1, "the name is free again, and no second run exists"
    resumed = command("train", TASK, *flags, "--max-iterations", "1")
    assert resumed.code == Exit.DONE, resumed.err
    assert list((command.cwd / "logs" / TASK).iterdir()) == runs


def test_a_run_that_appears_between_the_search_and_the_start_is_named(config: TrainConfig):
    add_run(config, "2026-01-31_12-00-00_a")
    named = dataclasses.replace(config, resume="auto", gpu_ids=None)
    with pytest.raises(UserError, match=r"^--resume auto: .*/2026-01-31_12-00-00_a has just appeared; "):
        train(named, lambda _: None, lambda *_: None)
    assert len(list(Path(config.log_root, TASK).iterdir())) == 1
