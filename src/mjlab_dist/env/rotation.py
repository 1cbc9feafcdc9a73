"""Rotations as MuJoCo has them: unit quaternions (w, x, y, z), over all envs at once."""

from __future__ import annotations

import math

import torch


def rotate(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Turn vectors from a body's frame to the world's.

    Args:
        quat: The body's orientation, (..., 4).
        vector: (..., 3).
    """
    w, axis = quat[..., :1], quat[..., 1:]
    twice = 2.0 * torch.linalg.cross(axis, vector)
    return vector + w * twice + torch.linalg.cross(axis, twice)


def rotate_inverse(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """Turn vectors from the world's frame to a body's.

    Args:
        quat: The body's orientation, (..., 4).
        vector: (..., 3).
    """
    w, axis = quat[..., :1], quat[..., 1:]
    twice = 2.0 * torch.linalg.cross(axis, vector)
    return vector - w * twice + torch.linalg.cross(axis, twice)


def multiply(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Quaternion product, (..., 4): the turn ``right``, then ``left``, both in the world's frame."""
    w1, x1, y1, z1 = left.unbind(-1)
    w2, x2, y2, z2 = right.unbind(-1)
    return torch.stack(
        [
            w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
            w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
            w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
            w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
        ],
        dim=-1,
    )


def conjugate(quat: torch.Tensor) -> torch.Tensor:
    """The opposite turn, (..., 4)."""
    return torch.cat([quat[..., :1], -quat[..., 1:]], dim=-1)


def from_euler(roll: torch.Tensor, pitch: torch.Tensor, yaw: torch.Tensor) -> torch.Tensor:
    """Quaternion of the turns about the body's x, then y, then z axes as seen from the world (z-y-x Euler angles).

    Args:
        roll: About x in rad, (...).
        pitch: About y in rad, (...).
        yaw: About z in rad, (...).

    Returns:
        (..., 4).
    """
    cr, sr = torch.cos(roll / 2), torch.sin(roll / 2)
    cp, sp = torch.cos(pitch / 2), torch.sin(pitch / 2)
    cy, sy = torch.cos(yaw / 2), torch.sin(yaw / 2)
    return torch.stack(
        [
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        ],
        dim=-1,
    )


def heading(quat: torch.Tensor) -> torch.Tensor:
    """Yaw angle in rad, (...), of the body's x axis projected onto the ground.

    Args:
        quat: The body's orientation, (..., 4).
    """
    w, x, y, z = quat.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def wrap_angle(angle: torch.Tensor) -> torch.Tensor:
    """The same angle between -pi and pi, in rad."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi


def angle_between(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Angle in rad, (...), of the turn that leads from one orientation to another.

    Args:
        left: (..., 4).
        right: (..., 4).
    """
    turn = multiply(conjugate(left), right)
    # acos of the first part would lose its precision where the two hardly differ.
    return 2.0 * torch.atan2(turn[..., 1:].norm(dim=-1), turn[..., 0].abs())
