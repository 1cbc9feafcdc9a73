"""Properties of command lines: every value of a config can be typed, and every mistake is reported."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import types
import typing
from typing import Any, Literal

import pytest
from config_values import changed, leaves
from configs import with_flags
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mjlab_dist.cli.run_flags import run_fields
from mjlab_dist.config import ParamValue, TrainConfig, registry
from mjlab_dist.errors import UserError

PROG = "train cartpole-balance"

DEFAULT = dataclasses.replace(registry.task_config("cartpole-balance"), gpu_num_envs=None, total_num_envs=None)

FIELDS = run_fields(DEFAULT)

SPELLINGS = sorted(f"--{name.replace('_', '-')}" for name in FIELDS)

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

# Without the fields whose values replace those of other fields
FREE_LEAVES = [leaf for leaf in LEAVES if leaf[0] not in {("gpu_num_envs",), ("total_num_envs",), ("total_timesteps",)}]


def test_every_value_of_a_config_has_a_flag():
    assert {".".join(steps) for steps, _, _ in LEAVES} <= FIELDS.keys()


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_what_is_typed_is_in_the_config_and_nothing_else_changes(data: st.DataObject):
    expected, argv = DEFAULT, list[str]()
    drawn = data.draw(st.lists(st.sampled_from(FREE_LEAVES), max_size=6, unique_by=lambda leaf: leaf[0]))
    for steps, hint, value in drawn:
        new = data.draw(values_of(hint, value), label=".".join(steps))
        *group, name = (step.replace("_", "-") for step in steps)
        if isinstance(new, bool):
            argv.append(f"--{'.'.join([*group, name if new else f'no-{name}'])}")
        elif not isinstance(new, tuple | dict) and data.draw(st.booleans(), label="with ="):
            argv.append(f"--{'.'.join([*group, name])}={new}")
        else:
            argv += [f"--{'.'.join([*group, name])}", *typed(new)]
        expected = changed(expected, steps, new)
    read = with_flags(DEFAULT, argv)
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
def test_a_command_line_is_read_or_refused(argv: list[str]):
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            assert isinstance(with_flags(DEFAULT, argv), TrainConfig)
        except UserError:
            return  # one of two alternatives
        except SystemExit:
            assert f"{PROG} --help" in printed.getvalue()
