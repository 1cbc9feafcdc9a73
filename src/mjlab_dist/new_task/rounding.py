"""Numbers as a person would write them."""

from __future__ import annotations


def rounded(number: float) -> float:
    """Return a number with two significant digits.

    Args:
        number: Any number.
    """
    return float(f"{number:.2g}")


def rounded_up(length_m: float) -> float:
    """Return a length in m, rounded up to a centimetre.

    Args:
        length_m: Any length.
    """
    return round(length_m + 0.005, 2)
