"""The installed command trains a random policy to nearly the maximum return on one and on two CPU ranks."""

from __future__ import annotations

import pytest
from conftest import Command

from mjlab_dist.runs.run_dir import read_metrics

MAXIMUM = 1000.0
"""Maximum return: an episode has 1,000 steps, each with a reward of at most 1."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "iterations", "share", "ranks"),
    [
        ("cartpole-balance", "75", 0.95, "2"),
        pytest.param("cartpole-balance", "100", 0.95, "1", marks=pytest.mark.long),
        pytest.param("cartpole-swingup", "180", 0.80, "2", marks=pytest.mark.long),
        pytest.param("cartpole-swingup", "180", 0.80, "1", marks=pytest.mark.long),
    ],
)
def test_task_trains_to_a_full_return(command: Command, task: str, iterations: str, share: float, ranks: str) -> None:
    # One and two ranks have the same total number of envs, so both take the same time. `timeout_s` only ends runs that
    # hang. The return exceeds the required share of the maximum after 60 iterations (balance) and 110 iterations
    # (swingup).
    flags = ("--gpu-ids", "None", "--cpu-ranks", ranks, "--total-num-envs", "512", "--seed", "1")
    flags += ("--max-iterations", iterations)
    done = command("train", task, *flags, timeout_s=800)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / task).iterdir()
    trained = read_metrics(run)[-1]["mean_return"]
    assert trained >= share * MAXIMUM, "mean over at least 100 episodes, with exploration noise"

    played = command("play", task, "--num-envs", "32")
    assert played.code == 0, played.err
    mean = float(played.out.split("mean return ")[1].split()[0])
    assert mean >= share * MAXIMUM, "without exploration noise"


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [("--sync.compression", "bf16"), ("--sync.compression", "fp16"), ("--agent.precision", "bf16")],
    ids=" ".join,
)
def test_fewer_bits_train_to_a_full_return(command: Command, flags: tuple[str, str]) -> None:
    ranks = ("--gpu-ids", "None", "--cpu-ranks", "2", "--total-num-envs", "512", "--seed", "1")
    done = command("train", "cartpole-balance", *ranks, *flags, "--max-iterations", "100", timeout_s=800)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / "cartpole-balance").iterdir()
    assert read_metrics(run)[-1]["mean_return"] >= 0.95 * MAXIMUM
