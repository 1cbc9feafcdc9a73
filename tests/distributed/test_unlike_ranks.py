"""Two ranks on one machine. One of them computes with different CPU instructions, and thus rounds differently."""

from __future__ import annotations

import socket

import pytest
import torch
from conftest import Command

from mjlab_dist.learn.learner import flatten
from mjlab_dist.runs.run_dir import checkpoint_path

FLAGS = ("--num-envs", "16", "--agent.num-steps-per-env", "8", "--agent.obs-normalization", "--max-iterations", "6")


OTHER_TORCH = ("ATEN_CPU_CAPABILITY", "default")

OTHER_MKL = ("MKL_CBWR", "COMPATIBLE")

PERIOD = ("--sync.period", "2")

SHARDED = ("--fsdp-devices", "2", "--sync.fsdp-min-size-mb", "0.01")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "flags"),
    [
        (OTHER_TORCH, ()),
        (OTHER_MKL, PERIOD),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [(OTHER_MKL, ()), (OTHER_TORCH, PERIOD), (OTHER_TORCH, SHARDED), (OTHER_MKL, SHARDED)]
        ),
    ],
    ids=str,
)
def test_ranks_with_other_instructions_stay_equal(
    command: Command, variable: tuple[str, str], flags: tuple[str, ...]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    own = [{}, dict([variable])]
    ranks = [
        command.start(
            *("train", "cartpole-balance", "--gpu-ids", "None", *FLAGS, "--sync.check-interval", "1", *flags),
            env={**world, "RANK": str(rank), "LOCAL_RANK": str(rank), **own[rank]},
        )
        for rank in range(2)
    ]
    done = [command.finish(rank) for rank in ranks]
    assert [one.code for one in done] == [0, 0], [one.err for one in done]
    assert "rank 1 rounds differently" in done[0].out
    (run,) = (command.cwd / "logs" / "cartpole-balance").iterdir()
    saved = flatten(torch.load(checkpoint_path(run, 6), weights_only=True))
    assert all(tensor.isfinite().all() for tensor in saved.values())
