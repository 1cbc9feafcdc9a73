"""Properties of the checks of a config: valid intervals, hosts and seeds are accepted, and errors name invalid ones."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mjlab_dist.config import PlayConfig, registry
from mjlab_dist.config.checks import parse_host, parse_interval, validate
from mjlab_dist.errors import UserError
from mjlab_dist.policies.choice import resolve

CONFIG = registry.task_config("cartpole-balance")

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
host_names = st.lists(labels, min_size=1, max_size=3).map(".".join)
addresses = st.ip_addresses().map(str)
hosts = st.one_of(host_names, addresses)


@given(iterations=st.integers(1, 10**12))
def test_an_interval_in_iterations_is_read_back(iterations: int):
    assert parse_interval(iterations) == (iterations, None)


@given(seconds=st.decimals("0.001", 10**9, places=3))
def test_an_interval_in_seconds_is_read_back(seconds: object):
    assert parse_interval(f"{seconds}s") == (None, float(str(seconds)))


@given(text=st.one_of(st.text(), st.from_regex(r"-?\d*\.?\d*(e\d)?s?", fullmatch=True)))
@example(text=f"{'9' * 400}s")
@example(text="9" * 5000)
@example(text="nans")
def test_any_other_interval_is_one_positive_finite_number_or_refused(text: str):
    try:
        iterations, seconds = parse_interval(text)
    except UserError as error:
        refusal = str(error)
    else:
        number = seconds if iterations is None else iterations
        assert number is not None
        assert 0 < number < math.inf
        assert (seconds is not None) == text.endswith("s")
        return
    assert refusal.startswith(f"--checkpoint.interval {text}:")


@given(host=hosts, num_ranks=st.none() | st.integers(1, 10**6 - 1))
def test_a_host_is_read_back_with_its_number_of_ranks(host: str, num_ranks: int | None):
    shown = f"[{host}]" if ":" in host and num_ranks is not None else host
    entry = shown if num_ranks is None else f"{shown}:{num_ranks}"
    validate(dataclasses.replace(CONFIG, hosts=(entry,)))
    assert parse_host(entry) == (host, num_ranks)


@given(
    names=st.lists(hosts, max_size=3, unique=True),
    wrong=st.builds(
        lambda host, separator, rest: f"{host}{separator}{rest}",
        host_names,
        st.sampled_from([",", " ", "@", "/", ";", "[", ":"]),
        host_names.filter(lambda name: not name.isdecimal()),
    ),
    data=st.data(),
)
def test_lists_and_users_in_a_host_are_refused_by_its_name(names: list[str], wrong: str, data: st.DataObject):
    names.insert(data.draw(st.integers(0, len(names))), wrong)
    with pytest.raises(UserError) as refusal:
        validate(dataclasses.replace(CONFIG, hosts=tuple(names)))
    assert str(refusal.value).startswith(f"--hosts {' '.join(names)}: {wrong!r} ")


@given(seed=st.one_of(st.integers(max_value=-1), st.integers(2**63)))
def test_seeds_that_have_not_63_bits_are_refused(seed: int):
    validate(dataclasses.replace(CONFIG, seed=seed % 2**63))
    with pytest.raises(UserError) as refusal:
        validate(dataclasses.replace(CONFIG, seed=seed))
    assert str(refusal.value).startswith(f"--seed {seed}:")
    with pytest.raises(UserError) as refusal:
        resolve("cartpole-balance", PlayConfig(seed=seed))
    assert str(refusal.value).startswith(f"--seed {seed}:")
