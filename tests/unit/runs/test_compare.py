"""Interquartile means and their bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from mjlab_dist.runs.compare import bootstrap, interquartile_mean


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([3.0], 3.0),
        ([1.0, 2.0, 6.0], 3.0),
        ([100.0, 1.0, 2.0, -100.0], 1.5),
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.0], 2.5),
    ],
)
def test_a_quarter_is_left_out_at_each_end(values: list[float], mean: float):
    assert interquartile_mean(np.array(values)) == pytest.approx(mean)
    assert interquartile_mean(np.array([values, values])) == pytest.approx([mean, mean])


def test_the_interval_contains_the_true_mean_about_as_often_as_its_level():
    drawn = np.random.default_rng(1).normal(5.0, 2.0, (200, 20))
    low, high = bootstrap(drawn)
    assert 0.85 < np.mean((low <= 5.0) & (high >= 5.0)) < 0.99
