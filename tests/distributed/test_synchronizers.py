"""Every flag that changes how ranks synchronize, with the installed command."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from run_files import only_run, untimed

from mjlab_dist.errors import Exit
from mjlab_dist.learn.learner import flatten
from mjlab_dist.runs.run_dir import checkpoint_path, list_checkpoints, read_metrics

BASE = ("train", "cartpole-balance", "--cpu-ranks", "2", "--num-envs", "16", "--agent.num-steps-per-env", "8")
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

DRIFTING = """
import os
from mjlab_dist.distributed.synchronizer import AllReduce

class Drifting(AllReduce):
    '''Flips one bit of one gradient on rank 1, from the ninth mini-batch on.'''
    calls = 0

    def reduce(self, buffer):
        super().reduce(buffer)
        self.calls += 1
        if self.calls > 8 and os.environ["RANK"] == "1":
            buffer.view(__import__("torch").int32)[5] ^= 1 << 18
"""


HOLDER = """
import torch
import torch.distributed as dist

class Holder:
    '''Holds a process group, which cannot be copied or pickled.'''
    keeps_equal = True
    made = []

    def __init__(self):
        self.made.append(self)
        self.group = dist.new_group()

    def reduce(self, buffer):
        assert self.made == [self], "another object was made"
        buffer /= dist.get_world_size()
        dist.all_reduce(buffer, group=self.group)
        print("reduced by the group")

    def due(self, iteration):
        return False
"""


def checkpoint(run: Path, iteration: int) -> dict[str, Any]:
    return torch.load(checkpoint_path(run, iteration), weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [("--sync.check-interval", "3"), pytest.param(("--checkpoint.interval", "3"), marks=pytest.mark.long)],
    ids=" ".join,
)
def test_a_rank_that_drifts_ends_the_run(command: Command, flags: tuple[str, ...]) -> None:
    (command.cwd / "drifting.py").write_text(DRIFTING)
    schedule = ("--agent.num-learning-epochs", "2", "--agent.num-mini-batches", "2", "--max-iterations", "50")
    done = command(
        *BASE,
        *schedule,
        "--checkpoint.interval",
        "2",
        *flags,
        "--sync.synchronizer",
        "drifting:Drifting",
        env={"PYTHONPATH": "."},
    )
    assert done.code == Exit.NUMERICS
    last_line = done.err.splitlines()[-2]
    assert re.search(r"DesyncError: iteration 3: ranks 0-1 .* actor\.", last_line)
    assert "mlp.0.weight" in last_line or "std_param" in last_line
    assert not command.leftovers()
    run = only_run(command.cwd)
    assert read_metrics(run)[-1]["iteration"] == 3
    saved = [p.name for p in list_checkpoints(run).values()]
    assert saved == ([] if "--checkpoint.interval" in flags else ["model_2.pt"]), (
        "checkpoints contain only what was equal on all ranks"
    )


@pytest.mark.slow
@pytest.mark.long
def test_checkpoints_between_averages_change_nothing_and_resume_exactly(command: Command) -> None:
    base = (*BASE, "--sync.period", "3", "--agent.obs-normalization")
    runs: dict[str, Path] = {}
    for name, steps in (
        ("plain", [("--checkpoint.interval", "100", "--max-iterations", "7")]),
        ("saved", [("--checkpoint.interval", "4", "--max-iterations", "5"), ("--resume", "latest")]),
    ):
        for flags in steps:
            end = ("--max-iterations", "7") if "--resume" in flags else ()
            done = command(*base, "--log-root", name, *flags, *end)
            assert done.code == 0, done.err
        (runs[name],) = (command.cwd / name / "cartpole-balance").iterdir()
    rows = untimed(runs["plain"])
    assert [row["iteration"] for row in rows if row["parameter_spread"] is not None] == [3, 6]
    assert all(row["parameter_spread"] > 0 for row in rows if row["parameter_spread"] is not None)
    assert all(0 < row["wait_share"] < 1 for row in read_metrics(runs["plain"]))
    assert untimed(runs["saved"]) == rows
    assert sorted(list_checkpoints(runs["saved"])) == [4, 5, 7]
    # The last checkpoints of both runs contain the same average over ranks, although one run wrote more checkpoints
    finals = [flatten(checkpoint(run, 7)) for run in runs.values()]
    assert finals[0].keys() == finals[1].keys()
    assert all(torch.equal(tensor, finals[1][name]) for name, tensor in finals[0].items())
    saved = checkpoint(runs["saved"], 4)
    own = [rank["learner/parameter/0"] for rank in saved["ranks"]]
    assert not torch.equal(own[0], own[1])
    torch.testing.assert_close(flatten(saved)["actor.distribution.std_param"], (own[0] + own[1]) / 2)


@pytest.mark.slow
@pytest.mark.long
def test_the_documented_synchronizer_trains(command: Command) -> None:
    path = os.pathsep.join([str(EXAMPLES)])
    done = command(
        *BASE,
        "--max-iterations",
        "4",
        "--sync.check-interval",
        "1",
        "--sync.synchronizer",
        "error_feedback:ErrorFeedback",
        env={"PYTHONPATH": path},
    )
    assert done.code == 0, done.err
    assert len(read_metrics(only_run(command.cwd))) == 4
    alone = command(
        *("train", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "16", "--max-iterations", "1"),
        *("--log-root", "alone", "--sync.synchronizer", "error_feedback:ErrorFeedback"),
        env={"PYTHONPATH": path},
    )
    assert alone.code == 0, alone.err


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [pytest.param(2, marks=pytest.mark.long), 1])
def test_a_synchronizer_can_hold_a_process_group(command: Command, num_ranks: int) -> None:
    (command.cwd / "holder.py").write_text(HOLDER)
    flags = ("--cpu-ranks", str(num_ranks), "--max-iterations", "1", "--sync.synchronizer", "holder:Holder")
    done = command(*BASE, *flags, env={"PYTHONPATH": "."})
    assert done.code == 0, done.err
    logs = list((only_run(command.cwd) / "torchrunx").rglob("*].log"))
    assert len(logs) == (num_ranks if num_ranks > 1 else 0)
    assert all("reduced by the group" in log.read_text() for log in logs)


@pytest.mark.slow
@pytest.mark.long
def test_sharded_recurrent_policy_in_bf16_trains_and_plays(command: Command) -> None:
    """Combine independent flags in one launch."""
    done = command(
        *BASE,
        *("--fsdp-devices", "2", "--sync.fsdp-min-size-mb", "0.01", "--sync.compression", "bf16"),
        *("--agent.rnn", "gru", "--agent.rnn-hidden-dim", "32", "--agent.precision", "bf16", "--max-iterations", "2"),
        "--agent.obs-normalization",
    )
    assert done.code == 0, done.err
    assert re.search(r"actor\.rnn\.rnn\.weight_hh_l0  \(96, 32\)  .*\b0 .*\b2 ranks", done.out)
    saved = checkpoint(only_run(command.cwd), 2)
    assert saved["actor_state_dict"]["rnn.rnn.weight_hh_l0"].shape == (96, 32), "checkpoints hold whole tensors"
    assert type(saved["actor_state_dict"]["rnn.rnn.weight_hh_l0"]) is torch.Tensor
    played = command("play", "cartpole-balance", "--num-envs", "2")
    assert played.code == 0, played.err
    assert re.search("^2 episodes", played.out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("error_feedback:Feedback", "module 'error_feedback' has no attribute 'Feedback'"),
        ("json:JSONDecoder", " reduce; "),
        ("argparse:Action", "'option_strings'"),
    ],
)
def test_a_class_that_is_not_a_synchronizer_is_refused(command: Command, path: str, said: str) -> None:
    flags = ("--gpu-ids", "None", "--num-envs", "16", "--sync.synchronizer", path)
    done = command("train", "cartpole-balance", *flags, env={"PYTHONPATH": str(EXAMPLES)})
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith(f"train: --sync.synchronizer {path}: ")
    assert said in line
    assert not (command.cwd / "logs").exists()


@pytest.mark.slow
@pytest.mark.long
def test_a_policy_too_small_to_shard_is_reported(command: Command) -> None:
    done = command(*BASE, "--fsdp-devices", "2", "--max-iterations", "1")
    assert done.code == 0, done.err
    assert " 4 MiB " in done.out
    assert " over 2 ranks" not in done.out
