"""Batched rotations by unit quaternions (w, x, y, z), MuJoCo's convention."""

from __future__ import annotations

import math

import torch


def rotate(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors from a body's frame to the world frame.

    Args:
        quat: The body's orientation, (..., 4).
        vector: Vectors in the body's frame, (..., 3).
    """
    w, axis = quat[..., :1], quat[..., 1:]
    side = torch.linalg.cross(axis, vector)
    return torch.addcmul(vector, w, side, value=2.0).add_(torch.linalg.cross(axis, side), alpha=2.0)


def rotate_inverse(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Rotate vectors from the world frame to a body's frame.

    Args:
        quat: The body's orientation, (..., 4).
        vector: Vectors in the world frame, (..., 3).
    """
    w, axis = quat[..., :1], quat[..., 1:]
    side = torch.linalg.cross(axis, vector)
    return torch.addcmul(vector, w, side, value=-2.0).add_(torch.linalg.cross(axis, side), alpha=2.0)


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the quaternion product, (..., 4): the rotation ``right`` followed by ``left``, both in the world frame."""
    w1, axis1 = left[..., :1], left[..., 1:]
    w2, axis2 = right[..., :1], right[..., 1:]
    axis = torch.linalg.cross(axis1, axis2).addcmul_(w1, axis2).addcmul_(w2, axis1)
    products = left * right
    w = products[..., :1] - products[..., 1:].sum(dim=-1, keepdim=True)
    return torch.cat([w, axis], dim=-1)


def conjugate(quat: torch.Tensor) -> torch.Tensor:
    """Return the inverse rotation, (..., 4)."""
    return torch.cat([quat[..., :1], -quat[..., 1:]], dim=-1)


def first_columns(quat: torch.Tensor) -> torch.Tensor:
    """Return the first two columns of rotation matrices, one after the other, (..., 6).

    Args:
        quat: Unit quaternions, (..., 4).
    """
    w, x, y, z = quat.unbind(-1)
    ww, xx, yy, zz = quat.square().unbind(-1)
    first = (ww + xx - yy - zz, 2.0 * (x * y + w * z), 2.0 * (x * z - w * y))
    second = (2.0 * (x * y - w * z), ww - xx + yy - zz, 2.0 * (y * z + w * x))
    return torch.stack([*first, *second], dim=-1)


def from_euler(roll: torch.Tensor, pitch: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
    """Return the quaternion of rotations about the world's x, then y, then z axis (roll, pitch, yaw).

    Args:
        roll: Angle about x in rad, (...).
        pitch: Angle about y in rad, (...).
        yaw: Angle about z in rad, (...).

    Returns:
        Unit quaternions, (..., 4).
    """
    half = torch.stack([roll, pitch, yaw], dim=-1) * 0.5
    (cr, cp, cy), (sr, sp, sy) = torch.cos(half).unbind(-1), torch.sin(half).unbind(-1)
    # Products of the cosines and sines of roll and pitch, then of all three angles
    products = torch.stack([cr, sr, cr, sr], dim=-1) * torch.stack([cp, cp, sp, sp], dim=-1)
    c, s = (products * cy.unsqueeze(-1)).unbind(-1), (products * sy.unsqueeze(-1)).unbind(-1)
    return torch.stack([c[0] + s[3], c[1] - s[2], c[2] + s[1], s[0] - c[3]], dim=-1)


def heading(quat: torch.Tensor) -> torch.Tensor:
    """Return the yaw angle in rad, (...), of the body's x axis projected onto the ground.

    Args:
        quat: The body's orientation, (..., 4).
    """
    w, x, y, z = quat.unbind(-1)
    # Half of the first column of the rotation matrix
    return torch.atan2((w * z).addcmul_(x, y), 0.5 - quat[..., 2:].square().sum(dim=-1))


def wrap_angle(angle: torch.Tensor) -> torch.Tensor:
    """Wrap an angle in rad to [-pi, pi)."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


def angle_between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the angle in rad, (...), of the rotation from one orientation to another.

    Args:
        left: First orientation, (..., 4).
        right: Second orientation, (..., 4).
    """
    turn = multiply(conjugate(left), right)
    # acos(w) would be imprecise for small angles.
    return 2.0 * half_angle(turn[..., 1:].norm(dim=-1), turn[..., 0].abs())


def half_angle(sine: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    """Return an angle in rad from its sine and cosine, neither of which may be negative.

    In torch's atan2 and acos, the rounding of an element depends on its position in the tensor, so results would depend
    on the number of ranks. With atan, they do not.

    Args:
        sine: Sine of the angle, or its product with any positive number.
        cosine: Cosine of the angle, times the same number. At most one of the two is 0.
    """
    return torch.atan(sine / cosine)  # at cosine 0, the arc tangent of infinity
