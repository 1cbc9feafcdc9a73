"""The installed command train prints the plan of a run, the steps of its setup, and its default devices."""

from __future__ import annotations

import os
import re

import pytest
from conftest import Command

TRAIN = ("train", "cartpole-balance", "--gpu-ids", "None")


def rows_of(out: str) -> dict[str, str]:
    """Return a dict from the title of each row of a plan to the first line of the row's text."""
    return {title: text for title, _, text in (line.partition("  ") for line in out.splitlines())}


@pytest.mark.slow
def test_a_dry_run_settles_everything_and_writes_nothing(command: Command) -> None:
    totals = ("--total-num-envs", "128", "--total-timesteps", str(5 * 128 * 32 + 1))
    done = command.here(*TRAIN, "--cpu-ranks", "2", *totals, "--run-name", "tried", "--dry-run")
    assert done.code == 0, done.err
    rows = rows_of(done.out)
    assert re.findall(r"\d+", rows["Envs"]) == ["64", "128"]
    assert re.search(r"\b5; 4,096 .*, 20,480 ", rows["Iterations"])
    assert "cpu x 2 (gloo" in rows["Ranks"]
    assert re.search(r"\d kB ", rows["Memory"])
    assert "_tried (new)" in rows["Run"]
    assert "torchrunx" in rows["Rank logs"]
    assert re.findall(r"[\d,]*\d", rows["Note"]) == ["20481", "5", "4,096", "20,480", "1"]
    assert list(command.cwd.iterdir()) == []


@pytest.mark.slow
def test_an_unknown_value_of_mujoco_gl_is_ignored(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    done = command.here(*TRAIN, "--dry-run")
    assert done.code == 0, done.err
    assert done.err.startswith("Warning: MUJOCO_GL vulkan: ")


@pytest.mark.slow
def test_a_dry_run_measures_auto_and_finds_configs_that_cannot_train(command: Command) -> None:
    done = command.here(*TRAIN, "--num-envs", "auto", "--dry-run")
    assert done.code == 0, done.err
    found = re.search(r"([\d,]+) per rank", rows_of(done.out)["Envs"])
    assert found
    assert int(found[1].replace(",", "")).bit_count() == 1, "a power of two"
    for flags in (
        ["--num-envs", "64", "--agent.num-mini-batches", "7"],
        ["--env.actions.joints", "no_such_joint"],
        ["--resume", "latest"],
    ):
        assert command.here(*TRAIN, *flags, "--dry-run").code == 2, flags
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert command(*TRAIN, "--dry-run", env=torchrun).code == 2  # ranks of torchrun end their process
    assert list(command.cwd.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_of_a_resumed_run_counts_the_remaining_iterations(command: Command) -> None:
    trained = command.here(*TRAIN, "--num-envs", "8", "--max-iterations", "2", "--verbose")
    assert trained.code == 0, trained.err
    assert re.search(r"\[ *\d+\.\d\d s\] rank 0: .* learner", trained.out)
    (run,) = (command.cwd / "logs" / "cartpole-balance").iterdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = command.here("train", "--resume", str(run), "--max-iterations", "5", "--dry-run")
    assert done.code == 0, done.err
    assert rows_of(done.out)["Iterations"].strip().startswith("3 left, 2 of 5 done;")
    assert "(resumed)" in rows_of(done.out)["Run"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.slow
@pytest.mark.long
def test_verbose_shows_the_set_up_of_every_rank(command: Command) -> None:
    short = ("--cpu-ranks", "2", "--num-envs", "8", "--max-iterations", "1")
    quiet, verbose = command(*TRAIN, *short), command(*TRAIN, *short, "--verbose")
    assert quiet.code == verbose.code == 0, quiet.err + verbose.err
    for step in (
        "launcher: ranks meet at",
        "rank 0: built envs 0 to 7",
        "rank 1: built envs 8 to 15",
        "rank 1: joined",
    ):
        assert step in verbose.out
        assert step not in quiet.out


@pytest.mark.slow
def test_default_without_gpu_warns_and_trains_on_the_cpu(command: Command) -> None:
    """Test on a machine without GPUs. If the user hides GPUs, there is no warning, as test_commands.py checks."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        pytest.skip("there is a GPU, which is hidden from this test")
    done = command("train", "cartpole-balance", "--num-envs", "8", "--max-iterations", "1")
    assert done.code == 0, done.err
    assert "--gpu-ids None" in done.err
