"""Properties of config files: a config that is written and read back equals the original."""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, Literal

import pytest
import yaml
from config_values import Steps, changed, leaves
from every_task import NAMES, config_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mjlab_dist.config import TrainConfig
from mjlab_dist.config.serialization import from_plain
from mjlab_dist.runs.run_dir import to_yaml

# Texts that a YAML file can contain. Some of them are read as numbers, dates or booleans if they are not quoted.
texts = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])),
    st.sampled_from(["1", "1e-3", "1.0", ".inf", "nan", "yes", "null", "~", "0x10", "1_000", "2026-11-22", "a: b"]),
)

integers = st.integers(-(2**63), 2**63)

reals = st.floats(allow_nan=False)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of the type of a field. The type must not be a dataclass."""
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, args))
    if origin is dict:
        return st.dictionaries(texts, values_of(args[1]), min_size=1, max_size=3)
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: integers,
        float: reals,
        str: texts,
        type(None): st.none(),
    }
    return scalars[hint]


@functools.cache
def task(name: str) -> tuple[TrainConfig, list[tuple[Steps, Any, Any]]]:
    return config_of(name), list(leaves(config_of(name), TrainConfig))


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    """Draw the config of a task, and replace some of its values with other values of the same types."""
    config, places = task(draw(st.sampled_from(NAMES)))
    for steps, hint, _ in draw(st.lists(st.sampled_from(places), max_size=12)):
        config = changed(config, steps, draw(values_of(hint)))
    return config


@pytest.mark.slow
@settings(max_examples=25)
@given(config=configs())
def test_a_config_comes_back_from_its_file_as_it_was(config: TrainConfig):
    read = from_plain(yaml.safe_load(to_yaml(config)))
    assert read == config
    assert repr(read) == repr(config), "a value has another type, such as 1 instead of 1.0"
