"""The cartpole tasks match formulas of the DeepMind Control Suite and the equations of motion in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.config import TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.sim import load_model
from mjlab_dist_tasks.cartpole import terms
from mjlab_dist_tasks.cartpole.config import balance, swingup

CART_KG, POLE_KG, POLE_M, GRAVITY = 1.0, 0.1, 1.0, 9.81
CART_DAMPING, POLE_DAMPING = 5e-4, 2e-6
FORCE_N = 10.0
REWARD_TOL = 1e-6

TASKS = pytest.mark.parametrize("task", [balance, swingup])


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(balance().env.sim.model)


def make(task: Callable[[], TrainConfig], num_envs: int, seed: int = 0) -> Env:
    torch.manual_seed(seed)
    return Env(task().env, num_envs, "cpu")


def test_the_mirror_of_a_step_is_the_step_of_the_mirror() -> None:
    env = make(balance, 64)
    random_state(env, 0)
    for state in (env.sim.qpos, env.sim.qvel):
        state[32:] = -state[:32]
    env.sim.mark_changed()
    actions = torch.randn(32, 1)
    _, both = terms.with_mirrored(env, None, actions)
    assert both is not None
    obs, rewards, _, _ = env.step(both)
    mirrored, _ = terms.with_mirrored(env, obs[:32], None)
    assert mirrored is not None
    torch.testing.assert_close(mirrored["actor"], obs["actor"], rtol=0, atol=1e-5)
    torch.testing.assert_close(rewards[32:], rewards[:32])


# The Control Suite's reward: dm_control/utils/rewards.py and dm_control/suite/cartpole.py


def tolerance(x: np.ndarray, margin: float, sigmoid: str, value_at_margin: float) -> np.ndarray:
    """Compute dm_control's rewards.tolerance with bounds (0, 0)."""
    distance = np.abs(x) / margin
    if sigmoid == "gaussian":
        return np.exp(-0.5 * (distance * np.sqrt(-2 * np.log(value_at_margin))) ** 2)
    scaled = distance * np.sqrt(1 - value_at_margin)
    return np.where(scaled < 1, 1 - scaled**2, 0.0)


def suite_reward(qpos: np.ndarray, qvel: np.ndarray, control: np.ndarray) -> np.ndarray:
    upright = (np.cos(qpos[:, 1]) + 1) / 2
    centered = (1 + tolerance(qpos[:, 0], 2, "gaussian", 0.1)) / 2
    small_control = (4 + tolerance(control[:, 0], 1, "quadratic", 0.0)) / 5
    small_velocity = (1 + tolerance(qvel[:, 1], 5, "gaussian", 0.1)) / 2
    return upright * small_control * small_velocity * centered


def float64(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy().copy()


def random_state(env: Env, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = env.num_envs
    env.sim.qpos[:] = torch.from_numpy(np.stack([rng.uniform(-1.9, 1.9, n), rng.uniform(-7, 7, n)], axis=1))
    env.sim.qvel[:] = torch.from_numpy(rng.normal(scale=[2.0, 6.0], size=(n, 2)))


@TASKS
def test_the_reward_equals_that_of_the_suite_after_the_step(task: Callable[[], TrainConfig]) -> None:
    env = make(task, 512)
    for seed in range(5):
        random_state(env, seed)
        actions = torch.randn(512, 1, generator=torch.Generator().manual_seed(seed)) * 2
        assert (actions.abs() > 1).sum() > 100
        assert (actions.abs() < 1).sum() > 100
        _, rewards, dones, _ = env.step(actions)
        assert not dones.any()  # so the current state is the rewarded state
        expected = suite_reward(float64(env.sim.qpos), float64(env.sim.qvel), float64(actions))
        assert np.ptp(expected) > 0.5
        np.testing.assert_allclose(rewards, expected, rtol=0, atol=REWARD_TOL)
        assert (rewards >= 0).all()
        assert (rewards <= 1).all()


# The distribution of 4,000 start states


def starts(task: Callable[[], TrainConfig]) -> tuple[np.ndarray, np.ndarray]:
    env = make(task, 4000)
    return float64(env.sim.qpos), float64(env.sim.qvel)


def assert_uniform(x: np.ndarray, low: float, high: float) -> None:
    width = high - low
    assert x.min() >= low - 1e-7
    assert x.max() <= high + 1e-7
    assert x.min() < low + 0.01 * width
    assert x.max() > high - 0.01 * width
    assert x.mean() == pytest.approx((low + high) / 2, abs=0.02 * width)
    assert x.std() == pytest.approx(width / np.sqrt(12), rel=0.03)


def assert_normal(x: np.ndarray, mean: float, std: float) -> None:
    assert x.mean() == pytest.approx(mean, abs=0.08 * std)
    assert x.std() == pytest.approx(std, rel=0.05)
    assert (np.abs(x - mean) < std).mean() == pytest.approx(0.683, abs=0.03)
    assert np.abs(x - mean).max() < 6 * std


def test_balance_starts_nearly_upright() -> None:
    qpos, qvel = starts(balance)
    assert_uniform(qpos[:, 0], -0.1, 0.1)
    assert_uniform(qpos[:, 1], -0.034, 0.034)
    assert_normal(qvel[:, 0], 0, 0.01)
    assert_normal(qvel[:, 1], 0, 0.01)
    assert abs(np.corrcoef(qpos.T)[0, 1]) < 0.06


def test_swingup_starts_hanging() -> None:
    qpos, qvel = starts(swingup)
    assert_normal(qpos[:, 0], 0, 0.01)
    assert_normal(qpos[:, 1], np.pi, 0.01)
    assert_normal(qvel[:, 0], 0, 0.01)
    assert_normal(qvel[:, 1], 0, 0.01)
    assert (suite_reward(qpos, qvel, np.zeros((4000, 1))) < 1e-3).all()


# The env


@TASKS
def test_an_episode_is_1000_steps_of_10_ms(task: Callable[[], TrainConfig]) -> None:
    env = make(task, 2)
    assert (env.max_episode_length, env.num_actions) == (1000, 1)
    assert env.step_dt_s == pytest.approx(0.01)
    env.episode_length_buf[:] = 998
    assert not env.step(torch.zeros(2, 1))[2].any()
    _, _, dones, extras = env.step(torch.zeros(2, 1))
    assert dones.all()
    assert extras["time_outs"].all()


@TASKS
def test_the_policy_observes_the_same_as_in_the_suite(task: Callable[[], TrainConfig]) -> None:
    env = make(task, 64)
    random_state(env, 0)
    obs = env.step(torch.ones(64, 1))[0]["actor"]
    (x, angle), (x_velocity, angle_velocity) = float64(env.sim.qpos).T, float64(env.sim.qvel).T
    expected = np.stack([x, np.cos(angle), np.sin(angle), x_velocity, angle_velocity], axis=1)
    np.testing.assert_allclose(obs, expected, rtol=0, atol=1e-6)


def test_nothing_overflows_at_the_rails_ends() -> None:
    env = make(swingup, 64)
    random_state(env, 1)
    furthest = 0.0
    for _ in range(200):
        env.step(torch.sign(env.sim.qpos[:, :1]))
        furthest = max(furthest, float(env.sim.qpos[:, 0].abs().max()))
        assert not env.sim.overflow.any()
    assert furthest > 1.8


# The model


def test_the_models_parameters_are_the_published_ones(model: Any) -> None:
    assert [model.body(name).mass[0] for name in ("cart", "pole")] == [CART_KG, POLE_KG]
    assert 2 * model.geom("pole").size[1] == POLE_M  # size[1] is half of a capsule's length
    assert model.body("pole").ipos.tolist() == [0, 0, POLE_M / 2]
    assert model.joint("slider").range.tolist() == [-1.8, 1.8]
    assert model.joint("slider").limited[0]
    assert not model.joint("hinge").limited[0]
    assert model.actuator("force").gear[0] == FORCE_N
    assert model.actuator("force").ctrlrange.tolist() == [-1, 1]
    assert model.actuator("force").ctrllimited[0]
    assert model.opt.timestep == 0.01
    assert model.opt.gravity.tolist() == [0, 0, -GRAVITY]
    assert (model.nq, model.nv, model.nu, model.nbody) == (2, 2, 1, 3)


def pole_inertia(model: Any) -> float:
    """Return the pole's moment of inertia about its hinge."""
    return model.body("pole").inertia[1] + POLE_KG * (POLE_M / 2) ** 2


def acceleration(model: Any, qpos: np.ndarray, qvel: np.ndarray, force: float) -> np.ndarray:
    """Solve the cart-pole's Lagrangian equations of motion. The angle is 0 upright and increases towards +x."""
    coupling = POLE_KG * POLE_M / 2
    sin, cos = np.sin(qpos[1]), np.cos(qpos[1])
    mass = np.array([[CART_KG + POLE_KG, coupling * cos], [coupling * cos, pole_inertia(model)]])
    cart = force + coupling * sin * qvel[1] ** 2 - CART_DAMPING * qvel[0]
    pole = coupling * GRAVITY * sin - POLE_DAMPING * qvel[1]
    return np.linalg.solve(mass, np.array([cart, pole]))


def test_the_inertia_of_the_pole_is_nearly_that_of_a_rod(model: Any) -> None:
    assert pole_inertia(model) == pytest.approx(POLE_KG * POLE_M**2 / 3, rel=0.15)


def test_the_model_follows_the_equations_of_motion(model: Any) -> None:
    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    for _ in range(50):
        data.qpos, data.qvel = rng.uniform([-1.5, -4], [1.5, 4]), rng.normal(scale=3, size=2)
        ctrl = rng.uniform(-2, 2)
        data.ctrl = ctrl
        mujoco.mj_forward(model, data)
        force = FORCE_N * float(np.clip(ctrl, -1, 1))
        np.testing.assert_allclose(data.qacc, acceleration(model, data.qpos, data.qvel, force), rtol=1e-9, atol=1e-9)


def test_the_rail_stops_the_cart_at_1_8_m() -> None:
    env = make(balance, 2)
    env.sim.qpos[:] = torch.tensor([[1.7, 0.0], [-1.7, 0.0]])
    env.sim.qvel.zero_()
    for _ in range(500):
        env.step(torch.tensor([[0.5], [-0.5]]))
    assert env.sim.qpos[:, 0].abs().tolist() == pytest.approx([1.8, 1.8], abs=0.1)
