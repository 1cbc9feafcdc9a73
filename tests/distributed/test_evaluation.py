"""Evaluations during training, on one and on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from mjlab_dist.learn.learner import flatten
from mjlab_dist.runs.run_dir import checkpoint_path, read_metrics

TASK = "quadruped-velocity-flat"

SMALL = (
    "--gpu-ids",
    "None",
    "--total-num-envs",
    "8",
    "--agent.num-steps-per-env",
    "8",
    "--env.episode-length-s",
    "0.2",
)

EVALUATED = ("--evaluate-interval", "2", "--evaluate-episodes", "20")
"""Flags for evaluations with two batches of envs. The second batch is smaller."""

pytestmark = pytest.mark.slow


def train(command: Command, *flags: str, iterations: int = 3) -> tuple[Path, list[dict[str, Any]]]:
    """Train, and return the run directory and the rows of metrics."""
    before = set(command.cwd.glob("logs/*/*"))
    done = command("train", TASK, *SMALL, "--max-iterations", str(iterations), *flags)
    assert done.code == 0, done.err
    (run,) = set(command.cwd.glob("logs/*/*")) - before
    return run, read_metrics(run)


def evaluations(rows: list[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """Return a dict from each iteration with an evaluation to the columns of this evaluation."""
    found = {row["iteration"]: {k: v for k, v in row.items() if k.startswith("evaluation/")} for row in rows}
    return {iteration: columns for iteration, columns in found.items() if columns}


SHARDED = ("--cpu-ranks", "2", "--fsdp-devices", "2", "--sync.fsdp-min-size-mb", "0.01")


@pytest.mark.parametrize(
    "flags",
    [pytest.param(("--agent.rnn", "gru"), marks=pytest.mark.long), SHARDED],
    ids=["gru", "two ranks with shards"],
)
def test_training_with_evaluations_is_bit_equal(command: Command, flags: tuple[str, ...]):
    plain, _ = train(command, *flags)
    evaluated, rows = train(command, *flags, *EVALUATED)
    saved = [flatten(torch.load(checkpoint_path(run, 3), weights_only=True)) for run in (plain, evaluated)]
    different = [name for name, tensor in saved[0].items() if not torch.equal(tensor, saved[1][name])]
    assert set(different) <= {"counters/elapsed_s"}
    found = evaluations(rows)
    assert list(found) == [2, 3], "every second iteration, and the last one"
    for columns in found.values():
        assert columns["evaluation/length"] == 10
        assert columns["evaluation/termination/time_limit"] == 1
        terms = [value for name, value in columns.items() if name.startswith("evaluation/reward/")]
        assert sum(terms) == pytest.approx(columns["evaluation/return"], rel=1e-4, abs=1e-5)
    assert found[2] != found[3], "the policy has changed"


@pytest.mark.parametrize("engine", ["mujoco", pytest.param("warp", marks=pytest.mark.long)])
def test_evaluations_do_not_depend_on_ranks_resuming_or_earlier_evaluations(command: Command, engine: str):
    # The learning rate is so small that the policy does not change
    fixed = (*EVALUATED, "--env.sim.engine", engine, "--agent.learning-rate", "1e-30", "--agent.schedule", "fixed")
    run, rows = train(command, *fixed, iterations=4)
    found = evaluations(rows)
    assert found[2] == found[4], "every evaluation draws the same random numbers"
    same_policy = ("--init-from", str(checkpoint_path(run, 4)))
    _, rows = train(command, *fixed, "--cpu-ranks", "2", *same_policy, iterations=2)
    assert evaluations(rows)[2] == found[2]
    done = command("train", TASK, "--resume", str(run), "--max-iterations", "6")
    assert done.code == 0, done.err
    assert evaluations(read_metrics(run))[6] == found[2]
