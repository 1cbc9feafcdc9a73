"""mjlab-dist scaling: real launches with one and two ranks, and flags that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Command

from mjlab_dist.cli import scaling
from mjlab_dist.errors import UserError

ON_CPU = ("cartpole-balance", "--gpu-ids", "None", "--cpu-ranks", "2")
SHORT = (*ON_CPU, "--num-envs", "64")


@pytest.mark.slow
def test_two_ranks_are_measured_until_a_return(command: Command, short_tmp: Path) -> None:
    command.cwd = short_tmp
    # Episodes have 50 steps, so that some have ended after two iterations of 32 steps each
    (command.cwd / "tmp").mkdir()
    flags = ("--rounds", "1", "--until-return", "1", "--max-iterations", "60", "--json", "--plot", "scaling.png")
    flags += ("--env.episode-length-s", "0.5")
    done = command("mjlab-dist", "scaling", *SHORT, *flags, env={"TMPDIR": "tmp"})
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(done.out)
    assert report["task"] == "cartpole-balance"
    assert [row["num_envs"] for row in report["weak"]["rows"]] == [64, 64]
    assert [row["num_envs"] for row in report["strong"]["rows"]] == [64, 32]
    for mode in ("weak", "strong"):
        rows = report[mode]["rows"]
        assert [row["num_ranks"] for row in rows] == [1, 2]
        assert rows[1]["efficiency"] == pytest.approx(rows[1]["steps_per_s"] / rows[0]["steps_per_s"] / 2)
        assert report[mode]["limits"]
        for row in rows:
            shares = row["shares"]
            assert sum(shares.values()) == pytest.approx(1)
            assert min(shares[name] for name in ("physics", "env", "policy", "update")) > 0
            (one,) = row["rounds"]
            assert len(one["computing_s"]) == row["num_ranks"]
            assert one["reached"]["seconds"] > 0
            # The training stops when it has reached the return
            assert one["reached"]["steps"] < 10 * 32 * row["num_envs"] * row["num_ranks"]
        assert rows[0]["shares"]["waiting"] < 0.01 < rows[1]["shares"]["waiting"] + rows[1]["shares"]["communication"]
    assert (command.cwd / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in command.cwd.iterdir()} == {"tmp", "scaling.png"}
    assert not list((command.cwd / "tmp").glob("mjlab-dist-scaling-*"))


@pytest.mark.parametrize(
    "flags",
    [
        ("--rounds", "0"),
        ("--until-return", "nan"),
        ("--plot", "scaling.jpg"),
        ("--num-envs", "auto"),
        ("--num-envs", "63"),
        ("--max-iterations", "3"),
        ("--total-timesteps", "8192"),
        ("--total-num-envs", "33"),
        ("--hosts", "localhost localhost"),
        ("--cpu-ranks", "0"),
    ],
    ids=" ".join,
)
def test_flags_that_cannot_be_measured_are_refused_in_one_line(
    flags: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A total excludes --num-envs, which is in SHORT
    given = ON_CPU if flags[0] == "--total-num-envs" else SHORT
    with pytest.raises(UserError) as refused:
        scaling.main([*given, *flags], "mjlab-dist scaling")
    assert str(refused.value).startswith(" ".join(flags))
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())
