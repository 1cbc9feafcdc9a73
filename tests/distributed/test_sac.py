"""Soft actor-critic: several ranks learn what one process learns, and a resumed run continues with its replay."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import sac_probe as probe
import torch
from conftest import Command
from fault_injection import faults
from own_ranks import results_of
from rollouts import difference
from run_files import only_run

from mjlab_dist.errors import Exit
from mjlab_dist.learn.learner import flatten
from mjlab_dist.runs.run_dir import checkpoint_path

Results = list[dict[str, Any]]

pytestmark = pytest.mark.slow

TRAIN = ("train", "cartpole-balance", "--algorithm", "sac", "--total-num-envs", "16")
SMALL = (
    *("--agent.num-steps-per-env", "8", "--agent.updates-per-step", "0.5", "--agent.warmup-steps", "16"),
    *("--agent.actor-hidden-dims", "16", "--agent.critic-hidden-dims", "16", "--agent.batch-size", "32"),
    *("--agent.replay-size", "512", "--agent.n-step", "2", "--agent.obs-normalization"),
)
TWO = ("--gpu-ids", "None", "--cpu-ranks", "2")


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, marks=pytest.mark.long), 3, pytest.param(4, marks=pytest.mark.long)],
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(probe.probe, tmp_path_factory.mktemp("ranks"), ranks=request.param)


def test_ranks_learn_what_one_process_learns(ranks: Results) -> None:
    for iteration, expected in enumerate(probe.alone(len(ranks))):
        for rank in ranks:
            largest, where = difference(rank["exact"][iteration]["state"], expected["state"])
            assert largest < 1e-9, where
        for name, value in expected["metrics"].items():
            mean = sum(rank["exact"][iteration]["metrics"][name] for rank in ranks) / len(ranks)
            assert mean == pytest.approx(value, rel=1e-9, abs=1e-12)
            assert value != 0


@pytest.mark.parametrize("kind", ["exact", "rounded", "local"])
def test_ranks_stay_bit_identical(ranks: Results, kind: str) -> None:
    for rank in ranks[1:]:
        for name, tensor in rank[kind][-1]["state"].items():
            assert torch.equal(tensor, ranks[0][kind][-1]["state"][name]), name
    first, second = (one[kind][0]["state"]["actor.mlp.0.weight"] for one in ranks[:2])
    assert torch.equal(first, second) == (kind != "local"), "local updates differ until they are averaged"


def test_a_fixed_temperature_stays_the_same(ranks: Results) -> None:
    assert [row["metrics"]["temperature"] for row in ranks[0]["rounded"]] == pytest.approx([0.1] * probe.ITERATIONS)
    assert ranks[0]["exact"][-1]["metrics"]["temperature"] != pytest.approx(0.1)


def trained(command: Command, *flags: str) -> tuple[dict[str, torch.Tensor], str]:
    """Train, and return the learner after 8 iterations, and what the command printed."""
    done = command(*flags)
    assert done.code == Exit.DONE, done.err
    return flatten(torch.load(checkpoint_path(only_run(command.cwd), 8), weights_only=True)), done.out


def test_a_resumed_run_is_bit_equal_also_with_another_number_of_ranks(command: Command) -> None:
    """The replay has wrapped around: 4 iterations fill it."""
    expected, _ = trained(command, *TRAIN, *SMALL, *TWO, "--max-iterations", "8")
    whole = only_run(command.cwd)
    assert [file.name for file in whole.glob("checkpoints/replay_*.pt")] == ["replay_8.pt"]
    whole.rename(command.cwd / "whole")
    # A run of 5 iterations, and copies of it
    done = command(*TRAIN, *SMALL, *TWO, "--max-iterations", "5")
    assert done.code == Exit.DONE, done.err
    run = only_run(command.cwd)
    copy = command.cwd / "copy"
    shutil.copytree(run, copy, symlinks=True)
    # Resumed with its replay
    resume = ("train", "--resume", str(run), "--max-iterations", "8")
    found, out = trained(command, *resume)
    assert difference(found, expected)[0] == 0
    assert "replay is empty" not in out
    # With one rank, whose envs start new episodes, but whose replay is that of both ranks
    for flags, is_empty in ((("--cpu-ranks", "1"), False), (("--total-num-envs", "32"), True)):
        shutil.rmtree(run)
        shutil.copytree(copy, run, symlinks=True)
        _, out = trained(command, *resume, *flags)
        assert ("replay is empty" in out) == is_empty
        assert "with new episodes" in out
    # Damaged, and without a replay
    shutil.rmtree(run)
    shutil.copytree(copy, run, symlinks=True)
    (replay,) = run.glob("checkpoints/replay_*.pt")
    replay.write_bytes(replay.read_bytes()[:1000])
    done = command(*resume, "--checkpoint.no-replay")
    assert done.code == Exit.DONE, done.err
    assert "replay_5.pt: cannot be read" in done.err + done.out
    assert "replay is empty" in done.out
    assert not list(run.glob("checkpoints/replay_*.pt"))


def test_a_killed_rank_changes_nothing(command: Command) -> None:
    flags = (*TRAIN, *SMALL, *TWO, "--max-iterations", "8", "--checkpoint.interval", "2")
    expected, _ = trained(command, *flags)
    only_run(command.cwd).rename(command.cwd / "whole")
    found, out = trained(command, *flags, "--max-restarts", "1", *faults(command.cwd, "1:6:sigkill"))
    assert "Resuming from iteration 4." in out
    assert difference(found, expected)[0] == 0


@pytest.mark.parametrize(
    ("fault", "message"),
    [("1:5:nan", "iteration 5: not finite: physics qvel"), ("1:5:corrupt", "DesyncError: iteration 6: ranks 0-1 ")],
)
def test_damaged_numbers_end_the_run(command: Command, fault: str, message: str) -> None:
    flags = ("--max-iterations", "8", "--checkpoint.interval", "4", "--sync.check-interval", "6")
    done = command(*TRAIN, *SMALL, *TWO, *flags, *faults(command.cwd, fault))
    assert done.code == Exit.NUMERICS, done.err
    assert message in done.err
    run = only_run(command.cwd)
    assert sorted(file.name for file in run.glob("checkpoints/*_*.pt")) == ["model_4.pt", "replay_4.pt"]
    for dump in run.glob("errors/nan_rank*.pt"):
        played = command("play", "cartpole-balance", "--nan-dump", str(dump), "--viewer", "none")
        assert "qvel" in played.out + played.err
