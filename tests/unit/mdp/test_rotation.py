"""Rotations equal those of MuJoCo's functions in float64."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.mdp import rotation

NUM = 500
ATOL = 1e-6


def quaternions(seed: int, num: int = NUM) -> np.ndarray:
    """Return random unit quaternions, rounded to float32. The first component of about half of them is negative."""
    quats = np.random.default_rng(seed).normal(size=(num, 4))
    return (quats / np.linalg.norm(quats, axis=1, keepdims=True)).astype(np.float32).astype(float)


def vectors(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, size=(NUM, 3)).astype(np.float32).astype(float)


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values).float()


def of_rows(function: Callable[..., None], size: int, *inputs: np.ndarray) -> np.ndarray:
    """Apply one of MuJoCo's functions to each row. These functions write to their first argument."""
    results = np.zeros((len(inputs[0]), size))
    for result, *row in zip(results, *inputs, strict=True):
        function(result, *row)
    return results


def test_rotations_products_and_conjugates_equal_those_of_mujoco() -> None:
    left, right, turned = quaternions(0), quaternions(1), vectors(2)
    back = of_rows(mujoco.mju_negQuat, 4, left)
    for ours, expected in (
        (rotation.rotate(tensor(left), tensor(turned)), of_rows(mujoco.mju_rotVecQuat, 3, turned, left)),
        (rotation.rotate_inverse(tensor(left), tensor(turned)), of_rows(mujoco.mju_rotVecQuat, 3, turned, back)),
        (rotation.multiply(tensor(left), tensor(right)), of_rows(mujoco.mju_mulQuat, 4, left, right)),
    ):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=ATOL)
    assert np.array_equal(rotation.conjugate(tensor(left)), back)


def test_euler_angles_are_rotations_about_the_world_axes_in_order() -> None:
    angles = np.random.default_rng(6).uniform(-4, 4, size=(NUM, 3)).astype(np.float32).astype(float)
    expected = of_rows(lambda result, euler: mujoco.mju_euler2Quat(result, euler, "XYZ"), 4, angles)
    ours = rotation.from_euler(*tensor(angles).unbind(dim=1))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=ATOL)


def test_the_heading_is_that_of_the_bodys_x_axis_over_ground() -> None:
    quats = quaternions(7)
    ahead = of_rows(mujoco.mju_rotVecQuat, 3, np.tile([1.0, 0, 0], (NUM, 1)), quats)
    level = np.hypot(ahead[:, 0], ahead[:, 1]) > 0.05
    assert level.sum() > 0.9 * NUM
    expected = np.arctan2(ahead[:, 1], ahead[:, 0])
    np.testing.assert_allclose(rotation.heading(tensor(quats)).numpy()[level], expected[level], rtol=0, atol=2e-5)


def test_wrapped_angles_are_the_same_angles_between_minus_pi_and_pi() -> None:
    angles = np.random.default_rng(8).uniform(-20, 20, size=NUM).astype(np.float32).astype(float)
    wrapped = rotation.wrap_angle(tensor(angles)).numpy()
    assert (np.abs(wrapped) <= np.pi + 1e-6).all()
    np.testing.assert_allclose(np.exp(1j * wrapped), np.exp(1j * angles), rtol=0, atol=5e-6)
    small = torch.linspace(-3.1, 3.1, 50)
    np.testing.assert_allclose(rotation.wrap_angle(small), small, rtol=0, atol=ATOL)


def test_the_angle_between_orientations_equals_that_of_mujoco() -> None:
    left, right = quaternions(9), quaternions(10)
    expected = np.linalg.norm(of_rows(mujoco.mju_subQuat, 3, right, left), axis=1)
    assert expected.max() > 3
    np.testing.assert_allclose(rotation.angle_between(tensor(left), tensor(right)), expected, rtol=0, atol=4 * ATOL)
    assert torch.equal(rotation.angle_between(tensor(left), tensor(-left)) < ATOL, torch.ones(NUM, dtype=torch.bool))


@pytest.mark.parametrize("angle_rad", [0.0, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 3.14])
def test_the_angle_between_nearly_equal_orientations_is_exact(angle_rad: float) -> None:
    left, axes = quaternions(11), vectors(12)
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    turn = of_rows(lambda result, axis: mujoco.mju_axisAngle2Quat(result, axis, angle_rad), 4, axes)
    right = of_rows(mujoco.mju_mulQuat, 4, turn, left)
    between = rotation.angle_between(tensor(left), tensor(right))
    np.testing.assert_allclose(between, np.full(NUM, angle_rad), rtol=0, atol=ATOL)


def test_leading_dimensions_are_kept() -> None:
    quats, turned = tensor(quaternions(13)).view(10, 50, 4), tensor(vectors(14)).view(10, 50, 3)
    for function in (rotation.rotate, rotation.rotate_inverse):
        flat = function(quats.flatten(0, 1), turned.flatten(0, 1))
        assert torch.equal(function(quats, turned), flat.view(10, 50, 3))
    assert rotation.heading(quats).shape == rotation.angle_between(quats, quats).shape == (10, 50)
