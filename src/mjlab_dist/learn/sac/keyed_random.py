"""Random numbers that are functions of a key and a position, so that they do not depend on the number of ranks.

The function is splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import math

import torch

_GAMMA = 0x9E3779B97F4A7C15


def _signed(number: int) -> int:
    """Return the int64 with the same bits as an unsigned number."""
    return (number + 2**63) % 2**64 - 2**63


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right as unsigned numbers; torch would copy the sign."""
    return (bits >> by) & (2 ** (64 - by) - 1)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def random_integers(key: int, positions: torch.Tensor) -> torch.Tensor:
    """Return integers from 0 to 2^53 - 1.

    Args:
        key: Selects one of the independent functions.
        positions: int64 of any shape.
    """
    start = _mixed(torch.full((), _signed(key * _GAMMA % 2**64), dtype=torch.int64, device=positions.device))
    return _shifted(_mixed(start + (positions + 1) * _signed(_GAMMA)), 11)


def random_normals(key: int, positions: torch.Tensor, width: int) -> torch.Tensor:
    """Return standard normal numbers in torch's default dtype, (*positions.shape, width), by the Box-Muller method.

    Args:
        key: Selects one of the independent functions.
        positions: int64 of any shape.
        width: Numbers per position.
    """
    half = (width + 1) // 2
    pairs = positions.unsqueeze(-1) * half + torch.arange(half, device=positions.device)
    # 1 - u is in (0, 1], so that its logarithm is finite
    radius, angle = (random_integers(key, 2 * pairs + i).double() / 2**53 for i in range(2))
    radius, angle = (-2.0 * (1.0 - radius).log()).sqrt(), 2.0 * math.pi * angle
    normals = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)[..., :width]
    return normals.to(torch.get_default_dtype())
