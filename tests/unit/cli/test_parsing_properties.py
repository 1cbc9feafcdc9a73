"""Properties of command lines: every value of a config can be typed, and every mistake is reported in one line."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

import pytest
from config_values import changed, leaves
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mjlab_dist import registry
from mjlab_dist.cli.help import flags_of
from mjlab_dist.cli.parsing import is_given, parse, refuse_unknown, take_flag, take_group
from mjlab_dist.config import ParamValue, TrainConfig
from mjlab_dist.errors import UserError

PROG = "train cartpole-balance"

DEFAULT = registry.task_config("cartpole-balance")

FLAGS = flags_of(DEFAULT)

SPELLINGS = sorted(spelling for flag in FLAGS if flag.path != "task" for spelling in flag.spellings)

words = st.from_regex(r"[A-Za-z0-9_./:][A-Za-z0-9_./: -]{0,12}", fullmatch=True).filter(lambda word: word != "None")

numbers = st.one_of(st.integers(-(10**9), 10**9).map(str), st.floats(allow_nan=False).map(str))

tokens = st.one_of(
    words,
    numbers,
    st.sampled_from(SPELLINGS),
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])),
)


def typed(value: Any) -> list[str]:
    """Return a value as arguments. A mapping becomes alternating names and values."""
    if isinstance(value, dict):
        return [str(part) for pair in value.items() for part in pair]
    return [str(part) for part in value] if isinstance(value, tuple) else [str(value)]


def values_of(hint: Any, value: Any) -> st.SearchStrategy[Any]:
    """Draw values that a user can type for a flag.

    The values have the type `hint`. If the flag is a parameter of a term, they have the type of the present `value`.
    """
    args, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if hint == ParamValue:
        return values_of(tuple[type(value[0]), ...] if isinstance(value, tuple) else type(value), value)
    if origin in (typing.Union, types.UnionType):
        # If a flag takes whole numbers and texts, draw no texts: one that looks like a number would become a number.
        kinds = [values_of(arg, value) for arg in args if arg is not str or int not in args]
        return st.one_of(kinds).filter(
            lambda drawn: float not in args or not isinstance(drawn, tuple) or len(drawn) > 1
        )
    if origin is dict:
        return st.dictionaries(values_of(args[0], value), values_of(args[1], value), min_size=1, max_size=3)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0], value), min_size=1, max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(arg, value) for arg in args))
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(10**18), 10**18),
        float: st.floats(allow_nan=False),
        str: words,
        type(None): st.none(),
    }
    return scalars[hint]


LEAVES = [leaf for leaf in leaves(DEFAULT, TrainConfig) if leaf[0] != ("task",)]


def test_every_value_of_a_config_has_a_flag():
    assert {".".join(steps) for steps, _, _ in LEAVES} <= {flag.path for flag in FLAGS}


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_typed_is_in_the_config_and_nothing_else_changes(data: st.DataObject):
    expected, argv = DEFAULT, list[str]()
    for steps, hint, value in data.draw(st.lists(st.sampled_from(LEAVES), max_size=6, unique_by=lambda leaf: leaf[0])):
        new = data.draw(values_of(hint, value), label=".".join(steps))
        *group, name = (step.replace("_", "-") for step in steps)
        if isinstance(new, bool):
            argv.append(f"--{'.'.join([*group, name if new else f'no-{name}'])}")
        elif not isinstance(new, tuple | dict) and data.draw(st.booleans(), label="with ="):
            argv.append(f"--{'.'.join([*group, name])}={new}")
        else:
            argv += [f"--{'.'.join([*group, name])}", *typed(new)]
        expected = changed(expected, steps, new)
    read = parse(DEFAULT, argv, PROG)
    assert read == expected
    assert repr(read) == repr(expected), "a value has another type, such as 1 instead of 1.0"


@pytest.mark.slow
@settings(max_examples=20)
@given(argv=st.lists(tokens, max_size=5))
@example(argv=["--num-envs", "many"])
@example(argv=["--num-envs"])
@example(argv=["--"])
@example(argv=["--agent.schedule", "cosine"])
@example(argv=["@file"])
def test_a_command_line_is_read_or_refused_in_one_line(argv: list[str]):
    try:
        config = parse(DEFAULT, argv, PROG)
    except UserError as error:
        refusal = str(error)
    else:
        assert isinstance(config, TrainConfig)
        return
    assert refusal.splitlines() == [refusal]
    assert f"{PROG} --help" in refusal


@pytest.mark.slow
@settings(max_examples=20)
@given(name=st.from_regex(r"[a-z]([a-z.-]{0,20}[a-z])?", fullmatch=True), value=st.none() | words)
def test_an_unknown_flag_is_refused_by_its_name(name: str, value: str | None):
    assume(not any(spelling.startswith(f"--{name}") for spelling in [*SPELLINGS, "--help-all"]))
    argv = [f"--{name}"] if value is None else [f"--{name}", value]
    with pytest.raises(UserError) as refusal:
        parse(DEFAULT, argv, PROG)
    assert str(refusal.value).startswith(f"--{name}: ")
    with pytest.raises(UserError) as refusal:
        refuse_unknown(argv, FLAGS, PROG)
    assert str(refusal.value).startswith(f"--{name}: ")


@given(spelling=st.sampled_from(SPELLINGS), underscores=st.booleans(), value=st.none() | words)
def test_every_spelling_of_a_flag_is_known(spelling: str, underscores: bool, value: str | None):
    flag = f"--{spelling[2:].replace('-', '_')}" if underscores else spelling
    argv = [flag] if value is None else [f"{flag}={value}"]
    refuse_unknown(argv, FLAGS, PROG)
    assert is_given(argv, spelling)


@given(argv=st.lists(tokens), value=words, with_equals=st.booleans(), data=st.data())
def test_a_flag_is_taken_out_with_its_value_and_the_rest_stays(
    argv: list[str], value: str, with_equals: bool, data: st.DataObject
):
    flag = "--the-flag"
    at = data.draw(st.integers(0, len(argv)))
    given_ = [f"{flag}={value}"] if with_equals else [flag, value]
    assert take_flag([*argv[:at], *given_, *argv[at:]], flag) == (value, argv)
    assert take_flag(argv, flag) == (None, argv)


@given(argv=st.lists(tokens), prefix=st.sampled_from(["--env.", "--agent.", "--"]))
def test_a_group_of_flags_and_the_rest_are_the_whole_command_line(argv: list[str], prefix: str):
    taken, rest = take_group(argv, prefix)
    left = iter(argv)
    assert all(arg in left for arg in taken), "the group's flags keep their order"
    left = iter(argv)
    assert all(arg in left for arg in rest), "the other arguments keep their order"
    assert sorted(taken + rest) == sorted(argv)
    assert [arg for arg in taken if arg.startswith("--")] == [arg for arg in argv if arg.startswith(prefix)]
