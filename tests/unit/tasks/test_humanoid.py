"""The humanoid matches the published figures of its robot."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.authoring.check.mirror_check import check_mirror
from mjlab_dist.env import Env
from mjlab_dist.sim import build_model
from mjlab_dist_tasks.humanoid.config import velocity_flat

LEG_KG = {"hip": 1.35, "hip_yoke": 1.52, "thigh": 1.702, "shin": 1.932, "ankle": 0.074, "foot": 0.608}
ARM_KG = {"shoulder": 0.718, "shoulder_yoke": 0.643, "upper_arm": 0.734, "forearm": 0.6, "hand": 0.35692864}
TRUNK_KG = {"pelvis": 3.813, "torso": 6.78 + 1.036}  # including the head
"""Masses of unitree_ros' g1_23dof_rev_1_0.urdf."""

LIMITS = {
    "hip_pitch": (-2.5307, 2.8798, 88, 32),
    "hip_roll": (-0.5236, 2.9671, 139, 20),
    "hip_yaw": (-2.7576, 2.7576, 88, 32),
    "knee": (-0.087267, 2.8798, 139, 20),
    "ankle_pitch": (-0.87267, 0.5236, 50, 37),
    "ankle_roll": (-0.2618, 0.2618, 50, 37),
    "shoulder_pitch": (-3.0892, 2.6704, 25, 37),
    "shoulder_roll": (-1.5882, 2.2515, 25, 37),
    "shoulder_yaw": (-2.618, 2.618, 25, 37),
    "elbow": (-1.0472, 2.0944, 25, 37),
    "wrist_roll": (-1.972222054, 1.972222054, 25, 37),
}
"""Left joints of the robot: range in rad, maximum torque in Nm, maximum speed in rad/s."""

MIRRORED = ("hip_roll", "hip_yaw", "ankle_roll", "shoulder_roll", "shoulder_yaw", "wrist_roll", "waist_yaw")
"""Joints that rotate about x or z. Their mirror images rotate in the opposite direction."""

NUM_ENVS = 4


@pytest.fixture(scope="module")
def model() -> Any:
    return build_model(velocity_flat().env.sim)


@pytest.fixture(scope="module")
def env(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    """Envs without terminations and events, so that tests can set states."""
    torch.manual_seed(0)
    return Env(dataclasses.replace(velocity_flat().env, terminations={}, events={}), NUM_ENVS, "cpu")


def at_home(model: Any) -> Any:
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    return data


# The robot


def test_masses_are_the_published_ones(model: Any) -> None:
    for side in ("left", "right"):
        for name, mass in (LEG_KG | ARM_KG).items():
            assert model.body(f"{side}_{name}").mass[0] == pytest.approx(mass, rel=1e-5)
    for name, mass in TRUNK_KG.items():
        assert model.body(name).mass[0] == pytest.approx(mass)
    total = sum(TRUNK_KG.values()) + 2 * sum((LEG_KG | ARM_KG).values())
    assert model.body("pelvis").subtreemass[0] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
def test_joints_and_motors_have_the_published_limits(model: Any, side: str) -> None:
    assert model.nu == model.njnt - 1 == 23
    data = mujoco.MjData(model)
    for name, (low, high, torque, speed) in LIMITS.items():
        joint = model.joint(f"{side}_{name}")
        mirrored = side == "right" and name.endswith("roll")
        np.testing.assert_allclose(joint.range, (-high, -low) if mirrored else (low, high), rtol=1e-5)
        motor = model.actuator(joint.name).id
        for velocity, most in ((0.0, torque), (speed / 2, torque / 2), (speed, 0.0)):
            data.qvel[:] = 0
            data.qvel[joint.dofadr[0]] = velocity
            data.ctrl[motor] = 100.0  # a target that needs the maximum torque
            mujoco.mj_forward(model, data)
            assert data.actuator_force[motor] == pytest.approx(most, abs=1e-9)


def test_the_height_of_the_robot_is_the_published_one(model: Any) -> None:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)  # all joints are at 0: the robot stands straight
    height_m = data.site("head").xpos[2] - data.site("left_foot").xpos[2]
    assert height_m == pytest.approx(1.32, abs=0.02)  # unitree.com/g1
    thigh_m = np.linalg.norm(data.body("left_shin").xpos - data.joint("left_hip_pitch").xanchor)
    shin_m = np.linalg.norm(data.body("left_ankle").xpos - data.body("left_shin").xpos)
    assert thigh_m + shin_m == pytest.approx(0.6, abs=0.06)


def test_left_mirrors_right(model: Any) -> None:
    rng = np.random.default_rng(0)
    data, mirror = mujoco.MjData(model), mujoco.MjData(model)
    for name in LIMITS:
        for side, other in (("left", "right"), ("right", "left")):
            angle = rng.uniform(-0.2, 0.2)
            data.joint(f"{side}_{name}").qpos[0] = angle
            mirror.joint(f"{other}_{name}").qpos[0] = -angle if name in MIRRORED else angle
    for each in (data, mirror):
        each.qpos[2] = 1.0
        mujoco.mj_forward(model, each)
    for name in ("foot", "hand"):
        np.testing.assert_allclose(
            mirror.body(f"right_{name}").xipos, data.body(f"left_{name}").xipos * [1, -1, 1], atol=1e-9
        )
    # The torso is not exactly symmetric.
    np.testing.assert_allclose(mirror.subtree_com[1], data.subtree_com[1] * [1, -1, 1], atol=1e-3)


def test_its_feet_carry_it_in_the_start_state(model: Any) -> None:
    data = at_home(model)
    soles = [data.geom(model.geom(i).name).xpos[2] for i in range(model.ngeom) if "heel" in model.geom(i).name]
    assert min(soles) == pytest.approx(0.005, abs=1e-3)  # the radius of the geoms, so the soles touch the floor
    for _ in range(80):  # 0.4 s; without a policy, it falls over after 1.7 s
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel).max() < 0.1
    assert data.qpos[2] == pytest.approx(0.777, abs=0.01)
    assert np.linalg.norm(data.qpos[:2]) < 0.1
    touching = {model.geom(pair).name for pair in data.contact.geom[:, 1]}
    assert touching == {f"{s}_{p}_{w}" for s in ("left", "right") for p in ("heel", "toe") for w in ("inner", "outer")}
    # Sensors measure the force of the feet on the floor, which points down.
    force_n = sum(data.sensor(f"{side}_foot_contact").data[3] for side in ("left", "right"))
    weight_n = 9.81 * model.body("pelvis").subtreemass[0]
    assert force_n == pytest.approx(-weight_n, rel=0.02)


def test_buffers_are_large_enough_for_extreme_falls(model: Any) -> None:
    rng = np.random.default_rng(0)
    sim = velocity_flat().env.sim
    most_contacts = most_rows = 0
    for _ in range(10):
        data = at_home(model)
        data.qvel[:6] = rng.uniform(-2, 2, 6)
        for i in range(600):
            if i % 40 == 0:
                data.ctrl = model.key_ctrl[0] + rng.uniform(-2, 2, model.nu)
            mujoco.mj_step(model, data)
            most_contacts, most_rows = max(most_contacts, data.ncon), max(most_rows, data.nefc)
        assert not any(warning.number for warning in data.warning)
    assert 8 < most_contacts <= sim.nconmax
    assert 24 < most_rows <= sim.njmax


# The task


@pytest.mark.usefixtures("engine_of_gpus")
def test_a_step_never_waits_for_the_device_and_all_is_finite(env: Env) -> None:
    env.reset()
    actions = torch.randn(25, NUM_ENVS, env.num_actions)
    with HostSyncs() as syncs:
        steps = [env.step(row) for row in actions]
    assert syncs.found == []
    for obs, reward, _, _ in steps:
        assert all(tensor.isfinite().all() for tensor in (obs["actor"], obs["critic"], reward))
    assert not env.sim.overflow.any()


def test_standing_still_earns_the_full_reward_of_a_standing_robot(env: Env) -> None:
    torch.manual_seed(1)
    env.reset()
    told = env.find_command("velocity")
    rewards = torch.zeros(0)
    for _ in range(25):
        told.value.zero_()
        told.left_s.fill_(100.0)
        _, rewards, _, _ = env.step(torch.zeros(NUM_ENVS, env.num_actions))
    names = ("track_linear_velocity", "track_yaw_rate", "alive", "gait")
    most = sum(env.cfg.rewards[name].weight for name in names) * env.reward_scale
    assert (rewards < most).all()
    assert (rewards > 0.9 * most).all()


def test_mirrored_samples_are_those_of_a_mirrored_robot() -> None:
    result = check_mirror(velocity_flat().env)
    assert result.passed, result.text
