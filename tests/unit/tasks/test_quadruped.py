"""The quadruped matches its published figures, and moves as in MuJoCo's C code. Its tasks run in a real env."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.authoring.check.mirror_check import check_mirror
from mjlab_dist.config import EnvConfig
from mjlab_dist.env import Env
from mjlab_dist.mdp.height_scan import HeightScan
from mjlab_dist.mdp.mirror import WithMirrored
from mjlab_dist.mdp.sensors import Contact
from mjlab_dist.sim import Simulation, build_model, load_model
from mjlab_dist_tasks.quadruped.config import flat, rough

MODEL = "mjlab_dist_tasks.quadruped:quadruped.xml"

LEGS = {"FL": (1, 1), "FR": (1, -1), "RL": (-1, 1), "RR": (-1, -1)}
"""Signs of each leg's position: front or rear, left or right."""

# The manufacturer's description: unitree_ros, robots/a1_description/xacro/const.xacro at commit 49e936b.
# Inertia: xx, yy, zz, xy, xz, yz.
TRUNK = (6.0, (0.0, 0.0041, -0.0005), (0.0158533, 0.0377999, 0.0456542, -0.0000366, -0.0000611, -0.0000275))
HIP = (
    0.595,
    (-0.003875, 0.001622, 0.000042),
    (0.000402747, 0.000691123, 0.000487919, -0.000008709, -0.000000297, -0.000000545),
)
THIGH = (
    0.888,
    (-0.003574, -0.019529, -0.030323),
    (0.005251806, 0.005000475, 0.001110200, -0.000002168, 0.000346889, -0.000028174),
)
CALF = (
    0.151,
    (0.007105, -0.000239, -0.096933),
    (0.002344758, 0.002360755, 0.000031158, 0.0, -0.000141275, 0.0),
)
FOOT = (0.06, (0.0, 0.0, -0.2), (9.6e-6, 9.6e-6, 9.6e-6, 0.0, 0.0, 0.0))
TOTAL_KG = 12.776

GRAVITY = 9.81

Inertial = tuple[float, tuple[float, ...], tuple[float, ...]]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def env(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    """Sixteen envs with different robots, without pushes."""
    config = flat().env
    return Env(dataclasses.replace(config, events={"joints": config.events["joints"]}), 16, "cpu")


def about_origin(part: Inertial) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the mass, the mass times the center of mass, and the inertia about the body's origin."""
    mass, com, (xx, yy, zz, xy, xz, yz) = part[0], np.array(part[1]), part[2]
    about_com = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    return mass, mass * com, about_com + mass * (com @ com * np.eye(3) - np.outer(com, com))


def of_body(model: Any, name: str) -> tuple[float, np.ndarray, np.ndarray]:
    body = model.body(name)
    turn = np.zeros(9)
    mujoco.mju_quat2Mat(turn, body.iquat)
    axes = turn.reshape(3, 3)
    com = body.ipos
    mass = float(body.mass[0])
    about_com = axes @ np.diag(body.inertia) @ axes.T
    return mass, mass * com, about_com + mass * (com @ com * np.eye(3) - np.outer(com, com))


@pytest.mark.parametrize("leg", LEGS)
def test_masses_centres_and_inertias_equal_the_published_ones_after_mirroring(model: Any, leg: str) -> None:
    fore, left = LEGS[leg]
    for name, parts, mirror in (
        ("trunk", [TRUNK], np.ones(3)),
        (f"{leg}_hip", [HIP], np.array([fore, left, 1])),
        (f"{leg}_thigh", [THIGH], np.array([1, left, 1])),
        (f"{leg}_calf", [CALF, FOOT], np.array([1, left, 1])),
    ):
        mass, moment, inertia = (sum(numbers) for numbers in zip(*map(about_origin, parts), strict=True))
        found = of_body(model, name)
        assert found[0] == pytest.approx(mass)
        np.testing.assert_allclose(found[1], moment * mirror, atol=1e-7)
        np.testing.assert_allclose(found[2], inertia * np.outer(mirror, mirror), atol=1e-8)


def test_its_mass_is_the_sum_of_its_parts(model: Any) -> None:
    assert model.body("trunk").subtreemass[0] == pytest.approx(TOTAL_KG)


@pytest.mark.parametrize("leg", LEGS)
def test_links_have_the_published_lengths(model: Any, leg: str) -> None:
    data = mujoco.MjData(model)  # at zero, every leg is straight and points down
    mujoco.mj_forward(model, data)
    fore, left = LEGS[leg]
    trunk = data.body("trunk").xpos
    hip = np.array([0.1805 * fore, 0.047 * left, 0.0])
    thigh = hip + np.array([0.0, 0.0838 * left, 0.0])
    calf = thigh - [0.0, 0.0, 0.2]
    for name, expected in (("hip", hip), ("thigh", thigh), ("calf", calf)):
        np.testing.assert_allclose(data.body(f"{leg}_{name}").xpos - trunk, expected, atol=1e-9)
    for foot in (data.geom(f"{leg}_foot").xpos, data.site(f"{leg}_foot").xpos):
        np.testing.assert_allclose(foot - trunk, calf - [0.0, 0.0, 0.2], atol=1e-9)
    assert model.geom(f"{leg}_foot").size[0] == 0.02


def test_joints_have_the_published_ranges_and_motors_the_published_limits() -> None:
    config = flat().env.sim
    built = build_model(config)
    names = [f"{leg}_{part}" for leg in LEGS for part in ("hip", "thigh", "calf")]
    assert [built.actuator(i).name for i in range(built.nu)] == names
    ranges = {"hip": (-46.0, 46.0), "thigh": (-60.0, 240.0), "calf": (-154.5, -52.5)}
    for name in names:
        np.testing.assert_allclose(np.degrees(built.joint(name).range), ranges[name[3:]])
        np.testing.assert_array_equal(built.actuator(name).forcerange, [-33.5, 33.5])
    assert config.actuators["legs"].velocity_limit == 21.0


def test_it_has_no_self_collisions_and_all_of_it_collides_with_the_ground(model: Any) -> None:
    robot = [i for i in range(model.ngeom) if model.geom_bodyid[i] > 0]
    colliding = [i for i in robot if model.geom_conaffinity[i] | model.geom_contype[i]]
    assert len(colliding) == 1 + 4 * len(LEGS)  # the trunk, and the hip, thigh, calf and foot of each leg
    floor = model.geom("floor").id
    for one in colliding:
        assert model.geom_contype[floor] & model.geom_conaffinity[one]
        assert not any(model.geom_contype[one] & model.geom_conaffinity[other] for other in robot)


def test_it_stands_after_a_drop() -> None:
    built = build_model(flat().env.sim)
    data = mujoco.MjData(built)
    mujoco.mj_resetDataKeyframe(built, data, built.key("home").id)
    data.qpos[2] += 0.05
    mujoco.mj_step(built, data, nstep=800)
    assert np.abs(data.qvel).max() < 0.02
    assert 0.25 < data.qpos[2] < 0.29
    assert data.qpos[3] > np.cos(np.radians(2) / 2)
    loads = np.array([data.sensor(f"{leg}_foot_contact").data for leg in LEGS])
    assert (loads[:, 0] == 1).all()
    # Sensors measure the force of each foot on the ground in the world frame.
    np.testing.assert_allclose(loads[:, 1:].sum(axis=0), [0.0, 0.0, -TOTAL_KG * GRAVITY], atol=0.5)
    touching = [built.sensor(i).name for i in range(built.nsensor) if data.sensordata[built.sensor_adr[i]] > 0]
    assert touching == [f"{leg}_foot_contact" for leg in LEGS]


def test_contact_sensors_of_trunk_and_legs_detect_the_ground() -> None:
    built = build_model(flat().env.sim)
    data = mujoco.MjData(built)
    mujoco.mj_resetDataKeyframe(built, data, built.key("home").id)
    data.qpos[2] = 0.2
    data.qpos[3:7] = [0.0, 1.0, 0.0, 0.0]  # the robot is on its back
    data.ctrl[:] = 0.0
    mujoco.mj_step(built, data, nstep=600)
    assert data.sensor("trunk_contact").data[0] > 0
    assert data.sensor("trunk_contact").data[3] < 0
    mujoco.mj_resetDataKeyframe(built, data, built.key("home").id)
    data.qpos[2] = 0.2
    data.qpos[7:] = np.tile([0.0, 1.5, -1.6], 4)  # the robot is on its knees and calves
    mujoco.mj_forward(built, data)
    for leg in LEGS:
        assert data.sensor(f"{leg}_calf_contact").data[0] > 0


def test_mujoco_warp_simulates_it_like_mujoco_c() -> None:
    # Drop the robot from 3 cm, and let it trot in place. Tolerances of float32 are in m, rad, m/s and rad/s.
    config = flat().env.sim
    built = build_model(config)
    sim = Simulation(built, 4, "cpu", config)
    sim.reset(torch.ones(4, dtype=torch.bool))
    data = mujoco.MjData(built)
    mujoco.mj_resetDataKeyframe(built, data, built.key("home").id)
    data.qpos[2] += 0.03
    sim.qpos[:, 2] += 0.03
    lifted = np.zeros((2, 12))
    for pair, legs in enumerate(((0, 3), (1, 2))):
        for leg in legs:
            lifted[pair, 3 * leg + 1 : 3 * leg + 3] = 0.4, -0.8
    home = built.key("home").ctrl
    for step in range(50):
        wave = np.sin(2 * np.pi * 2.0 * step * 0.02)
        ctrl = home + max(wave, 0.0) * lifted[0] + max(-wave, 0.0) * lifted[1]
        data.ctrl[:] = ctrl
        sim.ctrl.copy_(torch.from_numpy(ctrl))
        mujoco.mj_step(built, data, nstep=config.decimation)
        sim.step()
    np.testing.assert_allclose(sim.qpos[0].numpy(), data.qpos, atol=2e-3)
    np.testing.assert_allclose(sim.qvel[0].numpy(), data.qvel, atol=5e-2)


def test_a_standing_robot_reports_forces_of_its_feet_and_no_falls(env: Env) -> None:
    env.reset()
    rewards, falls = [], 0
    for _ in range(100):
        _, reward, _, _ = env.step(torch.zeros(16, 12))
        rewards.append(reward)
        falls += int(env.terminated.sum())
    assert torch.stack(rewards).isfinite().all()
    assert falls == 0
    feet = env.sensor("feet", Contact)
    assert feet.in_contact.all()
    masses = env.sim.field("body_mass").sum(dim=1)
    assert masses.max() - masses.min() > 0.5
    torch.testing.assert_close(-feet.force_n[..., 2].sum(dim=1), masses * GRAVITY, rtol=0.1, atol=0.0)
    assert not env.sensor("trunk", Contact).in_contact.any()
    assert env.sim.overflow.max() == 0


def test_an_episode_ends_for_a_robot_on_its_back(env: Env) -> None:
    env.reset()
    env.sim.qpos[3, 2:7] = torch.tensor([0.15, 0.0, 1.0, 0.0, 0.0])
    env.step(torch.zeros(16, 12))
    assert env.terminated.nonzero().flatten().tolist() == [3]


def test_the_critic_observes_the_randomized_values(env: Env) -> None:
    observed = env.reset()
    columns = env.observation_columns()["critic"]
    friction = observed["critic"][:, columns["friction"]]
    foot = env.sim.model.geom("FL_foot").id
    torch.testing.assert_close(friction, env.sim.field("geom_friction")[:, foot, :1].expand(-1, 4))
    assert friction.min() >= 0.5
    assert friction.max() <= 1.25
    assert friction[:, 0].unique().numel() == 16
    trunk = env.sim.model.body("trunk").id
    mass = observed["critic"][:, columns["added_mass"]].squeeze(1)
    torch.testing.assert_close(mass, env.sim.field("body_mass")[:, trunk] - 6.0)
    assert mass.abs().max() <= 1.0
    assert "friction" not in env.observation_columns()["actor"]


def test_motors_hold_the_position_of_the_action() -> None:
    # Without gravity's load, latency or noise, action 1 on one joint moves it by 0.25 rad from the home position.
    config = flat().env
    actions = {"joints": dataclasses.replace(config.actions["joints"], latency=(0, 0))}
    quiet = Env(_without_chance(dataclasses.replace(config, actions=actions)), 16, "cpu")
    quiet.reset()
    action = torch.zeros(16, 12)
    action[:, 2] = 1.0
    for _ in range(10):
        quiet.sim.qpos[:, 2] = 1.0  # held in the air
        quiet.sim.qvel[:, :6] = 0.0
        quiet.step(action)
    calf = quiet.sim.qpos[:, quiet.joints["FL_calf"].qpos]
    torch.testing.assert_close(calf, torch.full_like(calf, -1.6 + 0.25), atol=0.03, rtol=0.0)


def test_mirrored_samples_are_those_of_a_mirrored_robot() -> None:
    result = check_mirror(flat().env)
    assert result.passed, result.text


def test_the_ground_is_mirrored() -> None:
    env = Env(rough().env, 2, "cpu")
    points = env.sensor("ground", HeightScan).offsets
    at = env.observation_columns()["actor"]["ground"]
    obs = env.get_observations().clone()
    obs["actor"][:, at] = points.T
    both, _ = WithMirrored(env)(env, obs, None)
    assert both is not None
    torch.testing.assert_close(both["actor"][2:, at], torch.stack([points[:, 0], -points[:, 1]]))


def test_a_robot_that_leaves_its_tile_starts_on_the_next_level() -> None:
    config, side_m = rough().env, 6.0
    terrain = dataclasses.replace(config.sim.terrain, num_levels=2, tile_size_m=side_m)
    env = Env(dataclasses.replace(config, sim=dataclasses.replace(config.sim, terrain=terrain)), 2, "cpu")
    env.reset()
    before = env.origins.clone()
    env.sim.qpos[0, 1] += 0.5 * side_m + 0.1
    _, _, dones, _ = env.step(torch.zeros(2, 12))
    assert dones.tolist() == [True, False]
    assert not env.terminated.any()
    moved = (env.origins - before)[:, :2]
    torch.testing.assert_close(moved, torch.tensor([[side_m, 0.0], [0.0, 0.0]]))


def _without_chance(config: EnvConfig) -> EnvConfig:
    return dataclasses.replace(
        config, randomizations={}, events={}, observations={"actor": config.observations["actor"]}
    )
