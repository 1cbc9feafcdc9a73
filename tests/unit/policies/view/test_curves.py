"""Points of learning curves on a viewer's page."""

from __future__ import annotations

import math

import numpy as np

from mjlab_dist.policies.view.runs import History
from mjlab_dist.policies.view.watch import _joined


def _history(*values: float | None, first: int = 1) -> History:
    history = History()
    for iteration, value in enumerate(values, start=first):
        history.add({"iteration": iteration, "value": value})
    return history


def _points(*histories: History) -> list[list[float]]:
    joined = _joined([(history, "value") for history in histories])
    assert len(joined) == 1 + len(histories)
    return [column.tolist() for column in joined]


def test_rows_without_a_value_are_left_out() -> None:
    assert _points(_history(None, 2.0, None, math.nan, 5.0)) == [[2, 5], [2, 5]]
    assert _points(_history()) == [[], []]
    assert _points(_history(None, None)) == [[], []]


def test_a_line_without_a_value_repeats_the_previous_one() -> None:
    found = _points(_history(1.0, 2.0, None, 4.0), _history(None, 20.0, 30.0, None, 50.0))
    assert found == [[2, 3, 4, 5], [2, 2, 4, 4], [20, 30, 30, 50]]
    assert _points(_history(1.0), _history(7.0, 8.0, first=3)) == [[3, 4], [1, 1], [7, 8]]
    assert all(np.isfinite(column).all() for column in found)
