"""Injected faults are parsed from an environment variable."""

from __future__ import annotations

import pytest

from mjlab_dist.errors import UserError
from mjlab_dist.faults import ATTEMPT, VARIABLE, Fault, read_fault


def test_without_the_variable_there_is_no_fault():
    assert read_fault({}) is None
    assert read_fault({VARIABLE: ""}) is None


def test_each_attempt_has_its_own_fault():
    environ = {VARIABLE: "1:3:raise, 0:12:sigstop"}
    assert read_fault(environ) == Fault(rank=1, iteration=3, kind="raise")
    assert read_fault({**environ, ATTEMPT: "1"}) == Fault(rank=0, iteration=12, kind="sigstop")
    assert read_fault({**environ, ATTEMPT: "2"}) is None


@pytest.mark.parametrize("text", ["1", "1:2", "-1:2:raise", "1:x:raise", "1:2:explode", "1:2:raise,", "1:2:raise:now"])
def test_an_invalid_fault_is_refused_for_every_attempt(text: str):
    with pytest.raises(UserError, match=f"^{VARIABLE}={text}: .*<rank>:<iteration>:<kind>"):
        read_fault({VARIABLE: text, ATTEMPT: "7"})
