"""When a run of `mjlab-dist scaling --until-return` has reached its goal."""

from __future__ import annotations

import pytest

from mjlab_dist.scaling.run import has_reached


@pytest.mark.parametrize(
    ("mean_return", "goal", "expected"),
    [(0.0, -0.1, True), (0.0, 0.0, True), (-0.2, -0.1, False), (None, -0.1, False), (5.0, None, False)],
)
def test_a_return_of_zero_can_reach_a_goal(mean_return: float | None, goal: float | None, expected: bool) -> None:
    assert has_reached(mean_return, goal) is expected
