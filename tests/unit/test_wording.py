"""Parts of messages: suggestions for misspelled names, and lists of items."""

from __future__ import annotations

import pytest

from mjlab_dist.config import registry
from mjlab_dist.errors import did_you_mean, nearest, printable

FLAGS = [
    *("--num-envs", "--total-num-envs", "--max-iterations", "--agent.learning-rate", "--agent.gamma", "--video"),
    *("--hosts", "--env.nan-policy"),
]

TASKS = ["cartpole-balance", "cartpole-swingup", "quadruped-tracking", "quadruped-velocity-flat", "template"]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--num-env", "--num-envs"),
        ("num_envs", "--num-envs"),
        ("--agent.learnig-rate", "--agent.learning-rate"),
        ("--learning-rate", "--agent.learning-rate"),
        ("--iterations", "--max-iterations"),
        ("--vidio", "--video"),
        ("--policy", "--env.nan-policy"),
    ],
)
def test_the_nearest_name_is_suggested(typed: str, meant: str):
    assert nearest(typed, FLAGS) == [meant]
    assert did_you_mean(typed, FLAGS, "see --help") == f"did you mean {meant}?"


@pytest.mark.parametrize("typed", ["--zzzzzzzz", "--nam", "--banana-split", "--steps", "--", ""])
def test_nothing_is_suggested_without_a_near_name(typed: str):
    assert nearest(typed, FLAGS) == []
    assert did_you_mean(typed, FLAGS, "see --help") == "see --help"
    assert did_you_mean(typed, [], "see --help") == "see --help"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("cartpole-balnce", ["cartpole-balance"]),
        ("cartpole", ["cartpole-balance", "cartpole-swingup"]),
        ("quadruped", ["quadruped-tracking", "quadruped-velocity-flat"]),
    ],
)
def test_several_names_are_suggested_only_if_they_are_similarly_near(typed: str, meant: list[str]):
    assert nearest(typed, TASKS, max_names=3) == meant


def test_the_number_of_suggested_names_is_limited():
    tasks = registry.task_names()
    assert nearest("gym", tasks, max_names=3) == [name for name in tasks if name.startswith("gym")][:3]
    assert did_you_mean("cartpole", TASKS, "", 2) == "did you mean cartpole-balance or cartpole-swingup?"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 名前", "plain ü 名前"),
        ("a\nb\t", r"a\nb\t"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\udcff\u2028", r"\udcff\u2028"),
    ],
)
def test_a_printable_text_has_no_control_characters(text: str, shown: str):
    assert printable(text) == shown
