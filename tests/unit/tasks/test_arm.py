"""The arm matches the published figures of its robot, and its terms match MuJoCo's C code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.sim import build_model
from mjlab_dist_tasks.arm import terms
from mjlab_dist_tasks.arm.config import lift_cube, reach

LINKS_KG = (4.970684, 0.646926, 3.228604, 3.587895, 1.225946, 1.666555, 0.735522)
"""Masses of links 1 to 7, as identified by Gaz et al. 2019."""

DH = (
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -np.pi / 2),
    (0.0, 0.316, np.pi / 2),
    (0.0825, 0.0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0.0, 0.0, np.pi / 2),
    (0.088, 0.0, np.pi / 2),
)
"""Craig's parameters a in m, d in m and alpha in rad of joints 1 to 7. The flange is 0.107 m further along z."""

LIMITS = (
    (-2.8973, 2.8973, 87, 2.175),
    (-1.7628, 1.7628, 87, 2.175),
    (-2.8973, 2.8973, 87, 2.175),
    (-3.0718, -0.0698, 87, 2.175),
    (-2.8973, 2.8973, 12, 2.61),
    (-0.0175, 3.7525, 12, 2.61),
    (-2.8973, 2.8973, 12, 2.61),
)
"""Range in rad, maximum torque in Nm and maximum speed in rad/s of joints 1 to 7."""

NUM_ENVS = 4

TASKS = pytest.mark.parametrize("task", [reach, lift_cube])


@pytest.fixture(scope="module")
def arm() -> Any:
    return build_model(reach().env.sim)


@pytest.fixture(scope="module")
def with_cube() -> Any:
    return build_model(lift_cube().env.sim)


def make(task: Callable[[], TrainConfig], seed: int = 0, **changes: Any) -> Env:
    torch.manual_seed(seed)
    return Env(dataclasses.replace(task().env, **changes), NUM_ENVS, "cpu")


def at_home(model: Any) -> Any:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    return data


def c_sites(env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Return the gripper's positions (envs, 3) and rotations (envs, 3, 3) in the current states."""
    positions, rotations = [], []
    for qpos in env.sim.qpos.double().numpy():
        data = mujoco.MjData(env.sim.model)
        data.qpos = qpos
        mujoco.mj_kinematics(env.sim.model, data)
        positions.append(data.site("gripper").xpos.copy())
        rotations.append(data.site("gripper").xmat.reshape(3, 3).copy())
    return np.array(positions), np.array(rotations)


# The robot


def test_masses_are_the_published_ones(arm: Any) -> None:
    for i, mass in enumerate(LINKS_KG, start=1):
        assert arm.body(f"link{i}").mass[0] == pytest.approx(mass)
    assert arm.body("hand").subtreemass[0] == pytest.approx(0.73 + 2 * 0.015)
    assert arm.body("link1").subtreemass[0] == pytest.approx(sum(LINKS_KG) + 0.76)


def test_the_flange_matches_the_published_frames(arm: Any) -> None:
    rng = np.random.default_rng(0)
    data = mujoco.MjData(arm)
    for _ in range(20):
        data.qpos[:7] = rng.uniform(*np.array(LIMITS)[:, :2].T)
        mujoco.mj_kinematics(arm, data)
        pose = np.eye(4)
        for (a, d, alpha), theta in zip(DH, data.qpos, strict=False):
            ca, sa, ct, st = np.cos(alpha), np.sin(alpha), np.cos(theta), np.sin(theta)
            pose = pose @ np.array(
                [[ct, -st, 0, a], [st * ca, ct * ca, -sa, -sa * d], [st * sa, ct * sa, ca, ca * d], [0, 0, 0, 1]]
            )
        expected = pose @ [0, 0, 0.107, 1]
        np.testing.assert_allclose(data.site("flange").xpos, expected[:3], atol=1e-7)
        np.testing.assert_allclose(data.site("flange").xmat.reshape(3, 3), pose[:3, :3], atol=1e-6)


def test_joints_and_motors_have_the_published_limits(arm: Any) -> None:
    assert [arm.actuator(i).name for i in range(arm.nu)] == ["gripper", *(f"joint{i}" for i in range(1, 8))]
    data = mujoco.MjData(arm)
    for i, (low, high, torque, speed) in enumerate(LIMITS, start=1):
        joint = arm.joint(f"joint{i}")
        np.testing.assert_allclose(joint.range, (low, high))
        motor = arm.actuator(joint.name).id
        for velocity, most in ((0.0, torque), (speed / 2, torque / 2), (speed, 0.0)):
            data.qvel[:] = 0
            data.qvel[joint.dofadr[0]] = velocity
            data.ctrl[motor] = 100.0  # a target that needs the maximum torque
            mujoco.mj_forward(arm, data)
            assert data.actuator_force[motor] == pytest.approx(most, abs=1e-9)


def test_the_start_state_is_the_published_one_and_is_held(arm: Any) -> None:
    data = at_home(arm)
    # The pose of the gripper in the manufacturer's ready position.
    np.testing.assert_allclose(data.site("gripper").xpos, [0.307, 0.0, 0.487], atol=1e-3)
    np.testing.assert_allclose(data.site("gripper").xmat.reshape(3, 3), np.diag([1, -1, -1]), atol=1e-6)
    for _ in range(1000):
        mujoco.mj_step(arm, data)
    np.testing.assert_allclose(data.qpos, arm.key_qpos[0], atol=1e-4)
    np.testing.assert_allclose(data.qvel, 0, atol=1e-4)


def joint_targets(model: Any, data: Any, position: tuple[float, float, float]) -> np.ndarray:
    """Compute, with damped least squares, joint positions that put the gripper at `position` with the fingers down."""
    down = np.diag([1.0, -1.0, -1.0])
    scratch = mujoco.MjData(model)
    scratch.qpos = data.qpos
    jacobian = np.zeros((6, model.nv))
    site = model.site("gripper").id
    for _ in range(100):
        mujoco.mj_kinematics(model, scratch)
        mujoco.mj_comPos(model, scratch)
        mujoco.mj_jacSite(model, scratch, jacobian[:3], jacobian[3:], site)
        rotation = scratch.site("gripper").xmat.reshape(3, 3)
        turn = sum(np.cross(rotation[:, i], down[:, i]) for i in range(3)) / 2
        error = np.concatenate([np.array(position) - scratch.site("gripper").xpos, turn])
        arm = jacobian[:, :7]
        scratch.qpos[:7] += arm.T @ np.linalg.solve(arm @ arm.T + 1e-4 * np.eye(6), error)
    return scratch.qpos[:7].copy()


def move(model: Any, data: Any, position: tuple[float, float, float], opening_m: float) -> None:
    """Move the gripper to a position within 1.5 s."""
    start, goal = data.ctrl[1:].copy(), joint_targets(model, data, position)
    for share in np.linspace(0, 1, 300):
        data.ctrl[0], data.ctrl[1:] = opening_m, start + (goal - start) * share
        mujoco.mj_step(model, data)


def lift(model: Any, data: Any) -> None:
    for position, opening_m in [
        ((0.5, 0, 0.15), 0.08),
        ((0.5, 0, 0.02), 0.08),
        ((0.5, 0, 0.02), 0.0),
        ((0.5, 0.1, 0.3), 0.0),
    ]:
        move(model, data, position, opening_m)


def test_the_gripper_grasps_and_lifts_the_cube_without_slipping(with_cube: Any) -> None:
    data = at_home(with_cube)
    lift(with_cube, data)
    for _ in range(200):
        mujoco.mj_step(with_cube, data)
    np.testing.assert_allclose(data.site("gripper").xpos, (0.5, 0.1, 0.3), atol=5e-3)
    np.testing.assert_allclose(data.joint("cube/root").qpos[:3], data.site("gripper").xpos, atol=5e-3)
    np.testing.assert_allclose(data.qpos[7:9], 0.02, atol=2e-3)  # half the cube's width
    held = data.joint("cube/root").qpos[2]
    for _ in range(1000):
        mujoco.mj_step(with_cube, data)
    assert data.joint("cube/root").qpos[2] == pytest.approx(held, abs=1e-3)
    assert all(data.sensor(f"{side}_pad_contact").data[0] > 0 for side in ("left", "right"))


def test_the_gripper_holds_the_cube_while_the_arm_shakes(with_cube: Any) -> None:
    # With at most 20 steps of the line search, MuJoCo's solver stops early, and the cube shoots out at 5 m/s.
    data = at_home(with_cube)
    lift(with_cube, data)
    targets, random = data.ctrl[1:].copy(), np.random.default_rng(0)
    for _ in range(250):
        data.ctrl[1:] = targets + 0.25 * random.standard_normal(7)
        for _ in range(4):
            mujoco.mj_step(with_cube, data)
    off_m = np.linalg.norm(data.joint("cube/root").qpos[:3] - data.site("gripper").xpos)
    assert off_m < 0.02, "half the cube's width"


def test_fingers_that_press_on_the_table_grasp_nothing(with_cube: Any) -> None:
    data = at_home(with_cube)
    for height in (0.15, 0.0):  # fingertips are 1 cm below the gripper's site
        move(with_cube, data, (0.5, 0.2, height), 0.04)
    for _ in range(200):
        mujoco.mj_step(with_cube, data)
    fingers = {with_cube.geom(f"{side}_finger").id for side in ("left", "right")}
    assert fingers <= {geom for contact in data.contact[: data.ncon] for geom in contact.geom}, (
        "both fingers must touch the table"
    )
    assert all(data.sensor(f"{side}_pad_contact").data[0] == 0 for side in ("left", "right"))


# The tasks


@TASKS
@pytest.mark.usefixtures("engine_of_gpus")
def test_a_step_never_waits_for_the_device_and_all_is_finite(task: Callable[[], TrainConfig]) -> None:
    env = make(task)
    env.stagger()
    actions = 2 * torch.randn(60, NUM_ENVS, env.num_actions)
    with HostSyncs() as syncs:
        steps = [env.step(row) for row in actions]
    assert syncs.found == []
    assert all(torch.cat([obs["actor"], reward.unsqueeze(1)], dim=1).isfinite().all() for obs, reward, _, _ in steps)
    assert not env.sim.overflow.any()


def test_kinematics_equal_those_of_mujoco() -> None:
    env = make(reach)
    low, high = torch.tensor(LIMITS)[:, :2].T
    env.sim.qpos[:, :7] = torch.rand(NUM_ENVS, 7) * (high - low) + low
    seen = terms.Kinematics(env).position(env.sim.qpos)
    np.testing.assert_allclose(seen, c_sites(env)[0], atol=2e-6)


def test_reaching_is_rewarded_by_distance_and_angle() -> None:
    env = make(reach)
    for _ in range(20):
        env.step(torch.randn(NUM_ENVS, 7))
    target = env.command("target").double().numpy()
    # The env's poses are from the start of the last substep, and differ from the current poses by a few mm, which the
    # tolerances below allow.
    positions, rotations = c_sites(env)
    distance = np.linalg.norm(positions - target[:, :3], axis=1)
    angles = []
    for quat, rotation in zip(target[:, 3:], rotations, strict=True):
        told, turn = np.empty(9), np.empty(4)
        mujoco.mju_quat2Mat(told, quat)
        mujoco.mju_mat2Quat(turn, (told.reshape(3, 3).T @ rotation).flatten())
        angles.append(2 * np.arctan2(np.linalg.norm(turn[1:]), abs(turn[0])))
    assert np.ptp(distance) > 0.02
    assert np.ptp(angles) > 0.2
    at = {name: term(env).double().numpy() for name, term in zip(env.reward_names, env._rewards, strict=True)}
    np.testing.assert_allclose(at["near"], 1 - np.tanh(distance / 0.3), atol=0.05)
    np.testing.assert_allclose(at["at_position"], 1 - np.tanh(distance / 0.05), atol=0.1)
    np.testing.assert_allclose(at["at_orientation"], 1 - np.tanh(np.array(angles) / 0.5), atol=0.05)


@TASKS
def test_the_marker_is_at_the_target(task: Callable[[], TrainConfig]) -> None:
    env = make(task)
    body = env.sim.model.body("target").id
    told: Any = env.find_command("target")
    told.left_s[::2] = env.step_dt_s
    before = env.command("target").clone()
    for target in (before, env.command("target")):
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
        pose = torch.cat([env.sim.view("xpos")[:, body], env.sim.view("xquat")[:, body]], dim=1)
        torch.testing.assert_close(pose, target, atol=1e-6, rtol=0)
    assert (env.command("target") != before).any(dim=1).tolist() == [True, False] * (NUM_ENVS // 2)


def test_lifting_is_rewarded_in_stages() -> None:
    env = make(lift_cube, events={})
    env.reset()
    told: Any = env.find_command("target")
    env.step(torch.zeros(NUM_ENVS, 8))
    told.value[:, :3] = torch.tensor([0.5, 0.1, 0.3])
    gripper = env.sim.view("site_xpos")[0, env.sim.model.site("gripper").id].clone()
    cube = env.sim.qpos[:, env.joints["cube/root"].qpos]
    # Put the cubes of the four envs on the table, into the gripper, halfway up, and at the target.
    places = [(0.5, 0.0, 0.02), gripper.tolist(), (0.5, 0.1, 0.045), (0.5, 0.1, 0.3)]
    cube[:, :3] = torch.tensor(places)
    pads: Any = env._sensors["pads"]
    pads.in_contact.fill_(True)
    at = {name: term(env) for name, term in zip(env.reward_names, env._rewards, strict=True)}
    assert at["grasp"].tolist() == [0, 1, 0, 0]
    torch.testing.assert_close(at["height"], torch.tensor([0.0, 1.0, 0.5, 1.0]))
    distance = (cube[:, :3] - gripper).norm(dim=1)
    for name, scale in (("near_cube", 0.2), ("at_cube", 0.04)):
        torch.testing.assert_close(at[name], 1 - torch.tanh(distance / scale), atol=1e-5, rtol=0)
    away = torch.tensor(places).sub(told.value[:, :3]).norm(dim=1)
    for name, scale in (("near_target", 0.3), ("at_target", 0.05)):
        torch.testing.assert_close(at[name], (1 - torch.tanh(away / scale)) * at["height"], atol=1e-5, rtol=0)
    assert at["at_target"][3] == pytest.approx(1)
    pads.in_contact[:, 0] = False
    assert env._rewards[env.reward_names.index("grasp")](env).tolist() == [0, 0.5, 0, 0]


def test_cubes_start_anywhere_on_the_table_within_reach() -> None:
    torch.manual_seed(0)
    env = Env(lift_cube().env, 256, "cpu")
    cube = env.sim.qpos[:, env.joints["cube/root"].qpos]
    assert (cube[:, 2] - 0.02).abs().max() < 1e-6
    assert (cube[:, 0] - 0.5).abs().max() <= 0.1
    assert cube[:, 1].abs().max() <= 0.2
    assert cube[:, 0].std() > 0.05
    assert cube[:, 1].std() > 0.1
    seen = env.step(torch.zeros(256, 8))[0]["actor"]
    columns = env.observation_columns()["actor"]
    np.testing.assert_allclose(
        seen[:, columns["gripper_to_cube"]] + torch.from_numpy(c_sites(env)[0]), cube[:, :3], atol=1e-5
    )


def test_an_episode_ends_when_the_cube_leaves_the_table() -> None:
    env = make(lift_cube, events={})
    env.reset()
    env.sim.qpos[:, env.joints["cube/root"].qpos][:, :2] = torch.tensor([[0.5, 0], [1.06, 0], [0.5, 0.61], [-0.26, 0]])
    _, _, done, extras = env.step(torch.zeros(NUM_ENVS, 8))
    assert done.tolist() == [False, True, True, True]
    assert not extras["time_outs"].any()
