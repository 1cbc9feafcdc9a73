"""Rounding of numbers for generated source code."""

from __future__ import annotations


def rounded(number: float) -> float:
    """Return a number rounded to two significant digits."""
    return float(f"{number:.2g}")


def rounded_up(length_m: float) -> float:
    """Return a length in m, rounded up to the next centimeter."""
    return round(length_m + 0.005, 2)
