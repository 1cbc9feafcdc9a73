"""Properties of parts of messages: lists, suggestions, sizes."""

from __future__ import annotations

import re
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from mjlab_dist.errors import byte_size, did_you_mean, listed, nearest

names = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)

sizes = st.one_of(
    st.floats(0, 1e13),
    st.builds(lambda unit, share: unit * (1 - share), st.sampled_from([1e3, 1e6, 1e9]), st.floats(0, 1e-3)),
)
"""Numbers of bytes. Many are slightly less than 1 kB, 1 MB or 1 GB."""


@given(items=st.lists(names), last=st.sampled_from(["and", "or"]))
def test_a_list_in_words_holds_every_item_in_order(items: list[str], last: Literal["and", "or"]):
    text = listed(items, last)
    assert re.split(rf", | {last} ", text) == (items or [""])
    assert text.count(f" {last} ") == (len(items) > 1)


@given(known=st.lists(names, min_size=1, unique=True), data=st.data())
def test_a_name_that_exists_is_nearest_to_itself(known: list[str], data: st.DataObject):
    name = data.draw(st.sampled_from(known))
    longer = [other for other in known if other.startswith(name)]  # names that start with `name` are as near as `name`
    assert nearest(name, known)[0] in longer
    assert name in nearest(name, known, len(known))


@given(known=st.lists(names, min_size=1, unique=True), data=st.data())
def test_the_beginning_of_a_name_is_continued(known: list[str], data: st.DataObject):
    name = data.draw(st.sampled_from(known))
    typed = name[: data.draw(st.integers(1, len(name)))]
    assert nearest(typed, known)[0].startswith(typed)


@given(known=st.lists(names, unique=True), typed=st.text(), max_names=st.integers(1, 4))
def test_only_known_names_are_suggested_once_each_and_not_too_many(known: list[str], typed: str, max_names: int):
    near = nearest(typed, known, max_names)
    assert set(near) <= set(known)
    assert len(set(near)) == len(near) <= max_names
    assert near == nearest(typed, sorted(known), max_names), "the order of the known names does not matter"
    question = did_you_mean(typed, known, "OTHERWISE", max_names)
    assert all(name in question for name in near)
    assert (question == "OTHERWISE") == (not near)


@given(size=sizes)
def test_a_size_can_be_read_back_and_is_in_the_largest_unit_below_it(size: float):
    number, unit = byte_size(size).split()
    scale = {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert abs(float(number) * scale - size) <= scale / (2 if unit == "bytes" else 20) * 1.000001
    assert float(number) < 1000 or unit == "GB"
    assert float(number) >= 1 or unit == "bytes"
