"""Parts of messages: suggestions for misspelled names, and lists of items."""

from __future__ import annotations

import pytest

from mjlab_dist import registry
from mjlab_dist.wording import byte_size, did_you_mean, listed, nearest, printable

FLAGS = [
    *("--num-envs", "--total-num-envs", "--max-iterations", "--agent.learning-rate", "--agent.gamma", "--video"),
    *("--hosts", "--env.nan-policy"),
]

TASKS = ["cartpole-balance", "cartpole-swingup", "quadruped-tracking", "quadruped-velocity-flat", "template"]


@pytest.mark.parametrize(
    ("items", "words"),
    [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c"), ([1, 2], "1 or 2")],
)
def test_listed_joins_names(items: list[object], words: str):
    assert listed(items, "or") == words
    assert listed(items) == words.replace(" or ", " and ")


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
    ("num_bytes", "text"),
    [(999, "999 bytes"), (1000, "1.0 kB"), (52_340, "52.3 kB"), (10**8, "100.0 MB"), (2 * 10**9, "2.0 GB")],
)
def test_a_size_is_shown_in_the_largest_unit(num_bytes: int, text: str):
    assert byte_size(num_bytes) == text


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
