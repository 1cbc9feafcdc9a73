"""Flags have the same effect, whether they are parsed for a part of a config or for the whole config."""

from __future__ import annotations

import dataclasses

import pytest
import tyro
from configs import LEGGED

from mjlab_dist.cli.narrowing import narrowed
from mjlab_dist.config import TrainConfig

HELP = tyro.conf.arg(help="")


@pytest.mark.parametrize(
    "line",
    [
        "--num-envs 3 --agent.no-capture --agent.actor_hidden_dims 3 4 --num-envs=5",
        "--env.actions.rear.scale hip 1 --env.events.push.interval-s 1 2 --env.events.push.when reset",
        "--env.sim.decimation 3 --env.sim.options.iterations 4 --logger --sync.compression bf16",
        "--env.sim.model-params wheels 3",
    ],
)
def test_flags_change_a_part_as_they_change_the_whole_config(line: str) -> None:
    args = line.split()
    part_type, part, put_back = narrowed(LEGGED, args, HELP)
    changed = put_back(tyro.cli(part_type, default=part, args=args))
    assert changed == tyro.cli(TrainConfig, default=LEGGED, args=args)
    assert changed != LEGGED


def test_a_part_contains_only_fields_and_terms_that_flags_name() -> None:
    args = ["--seed", "3", "--env.events.push.when=reset", "--env.rewards.none.weight", "--unknown", "agent"]
    _, part, put_back = narrowed(LEGGED, args, HELP)
    assert {field.name for field in dataclasses.fields(part)} == {"seed", "env"}
    assert {field.name for field in dataclasses.fields(part.env)} == {"events", "rewards"}
    assert part.env.events == {"push": LEGGED.env.events["push"]}
    assert part.env.rewards == {}
    assert put_back(part) == LEGGED
