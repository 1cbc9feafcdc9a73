"""The installed command on two CPU ranks: totals over ranks, --num-envs auto, and the file ranks.json."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from run_files import only_run

from mjlab_dist.runs.run_dir import read_config_file, read_metrics

CPU = ("train", "cartpole-balance", "--gpu-ids", "None")
SHORT = ("--agent.num-steps-per-env", "2", "--max-iterations", "1")

UNLIKE = """
import os, psutil

from mjlab_dist.cli.entry import train

if os.environ.get("RANK") == "1":
    real = psutil.virtual_memory
    psutil.virtual_memory = lambda: real()._replace(total=987e9)
train()
"""
"""The command train, but rank 1 measures a different amount of memory."""


def ranks_of(run: Path) -> list[dict[str, Any]]:
    return json.loads((run / "ranks.json").read_text())


@pytest.mark.slow
def test_ranks_share_totals_and_report_their_devices(command: Command) -> None:
    total = ("--total-num-envs", "24", "--total-timesteps", str(3 * 24 * 8 + 5), "--agent.num-steps-per-env", "8")
    done = command(*CPU, "--cpu-ranks", "2", *total, "--seed", "5")
    assert done.code == 0, done.err
    (note,) = [line for line in done.out.splitlines() if line.startswith("--total-timesteps 581: ")]
    assert re.findall(r"\d+", note) == ["581", "3", "192", "576", "5"]
    assert " 3/3 " in done.out
    run = only_run(command.cwd)
    assert read_metrics(run)[-1]["total_steps"] == 3 * 24 * 8
    first, second = ranks_of(run)
    assert [(r["rank"], r["first_env_id"], r["num_envs"], r["seed"]) for r in (first, second)] == [
        (0, 0, 12, 5),
        (1, 12, 12, 6),
    ]
    assert {k: first[k] for k in ("host", "device", "name", "memory_gb", "capability")} == {
        k: second[k] for k in ("host", "device", "name", "memory_gb", "capability")
    }
    assert "differ" not in done.out

    # The config contains the requested total, so one rank that trains with this config gets all envs.
    config = read_config_file(run)
    assert (config.total_num_envs, config.total_timesteps) == (24, 3 * 24 * 8 + 5)
    again = command("train", "--config", str(run / "config.yaml"), "--cpu-ranks", "None", "--log-root", "again")
    assert again.code == 0, again.err
    (second_run,) = (command.cwd / "again" / "cartpole-balance").iterdir()
    assert [rank["num_envs"] for rank in ranks_of(second_run)] == [24]
    assert read_metrics(second_run)[-1]["total_steps"] == 3 * 24 * 8


@pytest.mark.slow
def test_ranks_agree_on_envs_by_memory(command: Command) -> None:
    done = command(*CPU, "--cpu-ranks", "2", "--num-envs", "auto", *SHORT)
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("--num-envs auto: ")]
    run = only_run(command.cwd)
    (num_envs,) = {rank["num_envs"] for rank in ranks_of(run)}
    assert num_envs.bit_count() == 1
    assert num_envs <= 16384
    assert line.startswith(f"--num-envs auto: {num_envs} ")
    assert [rank["first_env_id"] for rank in ranks_of(run)] == [0, num_envs]
    assert read_metrics(run)[-1]["total_steps"] == 2 * num_envs * 2
    assert read_config_file(run).num_envs == "auto"


@pytest.mark.slow
def test_different_devices_are_reported_under_torchrun(command: Command) -> None:
    train = command.script(UNLIKE)
    done = command("torchrun", "--nproc-per-node", "2", "--no-python", train, *CPU[1:], "--num-envs", "auto", *SHORT)
    assert done.code == 0, done.err
    (warning,) = [line for line in done.out.splitlines() if "--require-same-devices" in line]
    assert re.search(r"\(rank 0: .*; rank 1: .*\b987 GB", warning)
    run = only_run(command.cwd)
    assert ranks_of(run)[1]["memory_gb"] == 987
    assert {type(rank["num_envs"]) for rank in ranks_of(run)} == {int}
    assert read_config_file(run).num_envs == "auto"


@pytest.mark.slow
def test_every_rank_refuses_different_devices(command: Command) -> None:
    train = command.script(UNLIKE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    # Start the ranks without torchrun, because torchrun would end the other rank as soon as one rank fails
    ranks = [
        command.start(
            *(train, *CPU[1:], *SHORT, "--require-same-devices"), env={"RANK": rank, "LOCAL_RANK": rank, **world}
        )
        for rank in ("0", "1")
    ]
    for rank in ranks:
        _, err = rank.communicate(timeout=240)
        assert rank.returncode == 2, err
        assert err.startswith("train: --require-same-devices: "), err
    assert not list(command.cwd.glob("logs/*/*")), "no run directory is left"
