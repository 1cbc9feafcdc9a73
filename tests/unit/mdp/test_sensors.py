"""The contact sensor is compared with steps of MuJoCo's C code from the same states, and with timers in NumPy."""

from __future__ import annotations

import dataclasses

import mujoco
import numpy as np
import pytest
import torch
from env_terms_for_test import Height
from legged import (
    CONFIG,
    DT_S,
    FEET,
    HOME,
    SIM,
    c_copies,
    c_step,
    end_episodes,
    float64,
    make,
    observe,
    refused,
    reward,
    swinging_legs,
    term,
)

from mjlab_dist.config import (
    EventConfig,
    ObservationConfig,
    ParamValue,
    RewardConfig,
    TermConfig,
    TerrainConfig,
    TerrainPartConfig,
)
from mjlab_dist.env import Env
from mjlab_dist.env.term import Sensor
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.sensors import Contact, Gait

NUM_ENVS = 12


def contact(*sensors: str) -> dict[str, TermConfig]:
    return {"feet": term("sensors:Contact", sensors=sensors)}


class Stopwatches:
    """Records contacts and their times for each env and foot."""

    def __init__(self) -> None:
        shape = (NUM_ENVS, 4)
        self.air, self.contact, self.last_air = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.first = np.zeros(shape, dtype=bool)

    def step(self, touch: np.ndarray) -> None:
        self.first = touch & (self.air > 0)
        self.last_air = np.where(self.first, self.air + DT_S, self.last_air)
        self.air = np.where(touch, 0.0, self.air + DT_S)
        self.contact = np.where(touch, self.contact + DT_S, 0.0)

    def restart(self, mask: np.ndarray) -> None:
        for times in (self.air, self.contact, self.last_air, self.first):
            times[mask] = 0


@pytest.mark.slow
@pytest.mark.parametrize("share_of_ends", [0.0, 0.04])
def test_contact_force_and_times_of_feet_that_are_lifted_and_put_down(share_of_ends: float) -> None:
    env = make(NUM_ENVS, sensors=contact(".._touch"), episode_length_s=100.0)
    feet = env.sensor("feet", Contact)
    watches = Stopwatches()
    rng = np.random.default_rng(0)
    touched = np.zeros((200, NUM_ENVS, 4), dtype=bool)
    landings, hardest_n = 0, 0.0
    for now in range(200):
        ends = rng.random(NUM_ENVS) < share_of_ends
        end_episodes(env, torch.from_numpy(ends))
        copies = c_copies(env)
        actions = swinging_legs(now, NUM_ENVS)
        env.step(actions)
        c_step(env, copies, np.hstack([float64(HOME[:4] + 0.5 * actions), np.zeros((NUM_ENVS, 2))]))
        # Where an episode ends, the sensor is cleared, and so are the stopwatches
        data = np.array([[copy.sensor(f"{foot}_touch").data for foot in FEET] for copy in copies])
        watches.step(data[..., 0] > 0)
        watches.restart(ends)
        data[ends] = 0
        touched[now] = data[..., 0] > 0
        np.testing.assert_array_equal(feet.in_contact, touched[now])
        np.testing.assert_array_equal(feet.first_contact, watches.first)
        np.testing.assert_allclose(feet.force_n, data[..., 1:], rtol=1e-3, atol=2e-2)
        np.testing.assert_allclose(feet.air_time_s, watches.air, rtol=0, atol=1e-5)
        np.testing.assert_allclose(feet.contact_time_s, watches.contact, rtol=0, atol=1e-5)
        np.testing.assert_allclose(feet.last_air_time_s, watches.last_air, rtol=0, atol=1e-5)
        landings += int(feet.first_contact.sum())
        hardest_n = max(hardest_n, float(feet.force_n.norm(dim=2).max()))
    assert landings > 2 * NUM_ENVS * 4
    assert hardest_n > 30
    assert touched.any(axis=0).all()
    assert (~touched).any(axis=0).all()


def test_a_start_on_the_floor_is_not_a_landing() -> None:
    env = make(3, sensors=contact(".._touch"))
    feet = env.sensor("feet", Contact)
    env.sim.qpos[:, 2] -= 0.01
    env.step(torch.zeros(3, 4))
    assert feet.in_contact.all()
    assert not feet.first_contact.any()
    assert feet.contact_time_s.unique().tolist() == pytest.approx([DT_S])


WITH_FORWARD = dataclasses.replace(CONFIG.sim, forward_before_observation=True)


def c_forward(env: Env) -> list[mujoco.MjData]:
    """Return data of MuJoCo's C library for the current state of each env, with all derived quantities."""
    copies = c_copies(env)
    for copy in copies:
        mujoco.mj_forward(env.sim.model, copy)
    return copies


def test_with_forward_the_first_observation_has_the_contacts_of_the_start_state() -> None:
    down = EventConfig(func="mjlab_dist.mdp.events:DrawRoot", params={"z_m": (-0.02, 0.04)})
    env = make(NUM_ENVS, sim=WITH_FORWARD, sensors=contact(".._touch"), events={"down": down}, episode_length_s=100.0)
    feet = env.sensor("feet", Contact)
    everywhere, still = np.ones(NUM_ENVS, dtype=bool), torch.zeros(NUM_ENVS, 4)
    seen = np.zeros(2, dtype=bool)
    for ends in (everywhere, np.arange(NUM_ENVS) % 3 == 0, everywhere):
        end_episodes(env, torch.from_numpy(ends))
        before = float64(feet.contact_time_s)
        env.step(still)
        data = np.array([[copy.sensor(f"{foot}_touch").data for foot in FEET] for copy in c_forward(env)])
        np.testing.assert_array_equal(feet.in_contact[ends], data[ends, :, 0] > 0)
        np.testing.assert_allclose(feet.force_n[ends], data[ends, :, 1:], rtol=2e-3, atol=5e-2)
        for times in (feet.air_time_s, feet.contact_time_s, feet.last_air_time_s, feet.first_contact):
            assert not times[ends].any()
        touches = feet.in_contact.numpy()[~ends]
        np.testing.assert_allclose(feet.contact_time_s[~ends][touches], before[~ends][touches] + DT_S, atol=1e-5)
        seen |= [bool(feet.in_contact[ends].any()), bool((~feet.in_contact[ends]).any())]
        touched = feet.in_contact.clone()
        env.step(still)
        assert not (feet.first_contact & touched).any()
    assert seen.all()


# Sensors that measure when they are read


@pytest.mark.slow
@pytest.mark.parametrize("capturable", [True, False])
def test_a_lazy_sensor_measures_once_per_state_and_right_after_resets(capturable: bool) -> None:
    kind = "Height" if capturable else "HeightOutside"
    read: dict[str, ParamValue] = {"sensor": "height"}
    seen = ObservationConfig(func="env_terms_for_test:height", params=read)
    env = make(
        4,
        sim=WITH_FORWARD,
        sensors={"height": TermConfig(func=f"env_terms_for_test:{kind}", params={"geom": 1})},
        observations={"actor": {"height": seen}, "critic": {"height": seen}},
        rewards={"height": RewardConfig(func="env_terms_for_test:height_reward", weight=1.0, params=read)},
        events={"up": EventConfig(func="env_terms_for_test:lift", params={"z_m": 3.0})},
        terminations={},
    )
    sensor = env._sensors["height"]
    assert isinstance(sensor, Height)

    def expected() -> np.ndarray:
        return np.array([[copy.geom_xpos[1, 2]] for copy in c_forward(env)])

    np.testing.assert_allclose(env.get_observations()["actor"], expected(), atol=1e-5)
    for ends in ([False, True, False, True], [False] * 4, [True] * 4):
        end_episodes(env, torch.tensor(ends))
        before = sensor.num_measured
        obs, rewards, dones, _ = env.step(torch.zeros(4, 4))
        assert dones.tolist() == ends
        np.testing.assert_allclose(obs["actor"], expected(), atol=1e-5)
        assert torch.equal(obs["actor"], obs["critic"])
        assert sensor.num_measured == before + 2  # once after the physics, for the reward, and once after the resets
        assert (rewards[dones] < 3.0).all()  # the reward uses the last height of the ended episode, after a fall
        assert obs["actor"][dones].gt(2.9).all()
    _ = env.sensor("height", Height), env.sensor("height", Height)
    assert sensor.num_measured == before + 2
    env.sim.qpos[:, 2] += 1.0
    _ = env.sensor("height", Height)
    assert sensor.num_measured == before + 3


# Gaits

OFFSETS = (0.0, 0.5, 0.25, 0.75)


@pytest.mark.parametrize(("kind", "foot"), [("geom", "{}_foot"), ("site", "{}_foot"), ("body", "{}")])
def test_a_gait_tells_walking_robots_when_to_swing_each_foot(kind: str, foot: str) -> None:
    feet = tuple(foot.format(leg) for leg in FEET)
    params: dict[str, ParamValue] = {"feet": feet, "kind": kind, "offsets": OFFSETS}
    params |= {"frequency_hz": 4.0, "rest_s": 0.03}
    standing: dict[str, ParamValue] = {"forward_m_s": (0.5, 0.5), "left_m_s": (0.0, 0.0), "yaw_rad_s": (0.0, 0.0)}
    env = make(
        4,
        sensors={"gait": term("sensors:Gait", **params, command="velocity"), **contact(".._touch")},
        observations={"actor": {"clock": observe("gait_clock", {"sensor": "gait"})}},
        commands={"velocity": term("commands:Velocity", **standing, resample_s=(1e9, 1e9))},
        rewards={
            "contacts": reward("scheduled_contacts", gait="gait", contacts="feet"),
            "lift": reward("FootLift", gait="gait", height_m=0.1),
        },
        terminations={},
    )
    env.find_command("velocity").value[1] = 0.0
    ids, places = [getattr(env.sim.model, kind)(one).id for one in feet], "xpos" if kind == "body" else f"{kind}_xpos"
    start_m = env.sim.view(places)[0, ids, 2].numpy()  # episodes start in the same pose
    env.sim.qpos[:, 2] += torch.tensor([0.0, 0.0, 0.05, 0.1])
    swung = np.zeros(4)
    for step in range(1, 40):
        obs, _, dones, _ = env.step(torch.zeros(4, 4))
        assert not dones.any()
        walks = np.array([True, False, True, True]) & (step >= 3)
        phase = 2 * np.pi * (4.0 * DT_S * step + np.array(OFFSETS))
        swing = np.sin(phase) * walks[:, None]
        np.testing.assert_allclose(env.sensor("gait", Gait).swing, swing, atol=1e-4)
        np.testing.assert_allclose(obs["actor"], np.outer(walks, [np.sin(phase[0]), np.cos(phase[0])]), atol=1e-4)
        touches = env.sensor("feet", Contact).in_contact.numpy()
        target = 0.1 * swing.clip(min=0)
        height = env.sim.view(places)[:, ids, 2].numpy() - start_m
        clear = (np.abs(swing) > 1e-3).all(axis=1) | ~walks  # feet that neither start nor land
        rewards = env.reward_terms().numpy()
        np.testing.assert_allclose(rewards[0, clear], (touches == (swing <= 0))[clear].mean(axis=1), atol=1e-5)
        lift = ((target - np.abs(height - target)) / 0.1).sum(axis=1) * walks
        np.testing.assert_allclose(rewards[1, clear], lift[clear], atol=1e-3)
        swung += (swing > 0).any(axis=0)
    assert (swung > 5).all()


def test_a_robot_that_is_told_to_stand_may_step_until_it_is_still() -> None:
    standing: dict[str, ParamValue] = {"forward_m_s": (0.0, 0.0), "left_m_s": (0.0, 0.0), "yaw_rad_s": (0.0, 0.0)}
    gait: dict[str, ParamValue] = {"feet": (".._foot",), "offsets": OFFSETS, "frequency_hz": 4.0, "still_m_s": 0.3}
    env = make(
        4,
        sensors={"gait": term("sensors:Gait", **gait, command="velocity")},
        commands={"velocity": term("commands:Velocity", **standing, resample_s=(1e9, 1e9))},
        terminations={},
    )
    env.episode_length_buf.fill_(40)
    env.sim.qpos[:, 2] += 1.0  # in the air, nothing brakes the robots
    env.sim.qvel[:, :3] = torch.tensor([[0.25, -0.25, 0.0], [0.25, 0.0, 1.0], [-0.4, 0.0, 0.0], [0.0, 0.2, 0.0]])
    env.step(torch.zeros(4, 4))
    assert env.sensor("gait", Gait).clock.any(dim=1).tolist() == [True, False, True, False]


def test_feet_are_lifted_above_the_ground_below_them() -> None:
    part = TerrainPartConfig(kind="rough", height_m=(0.3, 0.3), width_m=(1.0, 1.0))
    ground = TerrainConfig(parts={"rough": part}, num_levels=2, num_columns=1, tile_size_m=4.0, border_m=1.0)
    walking: dict[str, ParamValue] = {"forward_m_s": (0.5, 0.5), "left_m_s": (0.0, 0.0), "yaw_rad_s": (0.0, 0.0)}
    env = make(
        16,
        sim=dataclasses.replace(SIM, terrain=ground),
        sensors={
            "gait": term("sensors:Gait", feet=(".._foot",), offsets=OFFSETS, frequency_hz=4.0, command="velocity")
        },
        commands={"velocity": term("commands:Velocity", **walking, resample_s=(1e9, 1e9))},
        rewards={"lift": reward("FootLift", gait="gait", height_m=0.1)},
        terminations={},
    )
    terrain, feet = env.terrain, env.find_frames("geom", (".._foot",))
    assert terrain is not None
    start = mujoco.MjData(env.sim.model)
    mujoco.mj_resetDataKeyframe(env.sim.model, start, 0)
    mujoco.mj_kinematics(env.sim.model, start)
    start_m = [start.geom(foot).xpos[2] for foot in feet.names]
    env.episode_length_buf.fill_(40)
    place = np.array(terrain.size_m) - 0.5
    env.sim.qpos[:, :2] = torch.from_numpy(np.random.default_rng(1).uniform(-place, place, size=(16, 2)))
    env.sim.qpos[:, 2] = 1.0
    env.step(torch.zeros(16, 4))
    pos, swing = feet.pos.numpy(), env.sensor("gait", Gait).swing.numpy()
    height, target = pos[:, :, 2] - terrain.height_at(pos[:, :, :2]) - start_m, 0.1 * swing.clip(min=0)
    assert np.ptp(height) > 0.2
    expected = (target - np.abs(height - target)).sum(axis=1) / 0.1
    np.testing.assert_allclose(env.reward_terms().numpy()[0], expected, atol=0.02)


def test_a_gait_without_an_offset_for_each_foot_is_refused() -> None:
    params: dict[str, ParamValue] = {"feet": (".._foot",), "offsets": (0.0, 0.5), "frequency_hz": 2.0}
    commands = {"velocity": term("commands:Velocity", forward_m_s=(0, 1), left_m_s=(0, 0), yaw_rad_s=(0, 0))}
    message = refused(sensors={"gait": term("sensors:Gait", **params, command="velocity")}, commands=commands)
    assert message.startswith("env.sensors.gait: gait: 2 offsets, but 4 feet: FL_foot")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("R._touch", "FR_touch"), ("FR_touch", "RL_touch", "RR_touch")),
        (("R.*_touch|.*unk_touch",), ("RL_touch", "RR_touch", "trunk_touch")),
    ],
)
def test_sensors_are_selected_by_patterns_in_model_order(patterns: tuple[str, ...], names: tuple[str, ...]) -> None:
    env = make(2, sensors=contact(*patterns))
    found = env.sensor("feet", Contact)
    assert found.names == names
    assert found.force_n.shape == (2, len(names), 3)
    env.sim.qpos[:, 2] -= 0.01
    env.step(torch.zeros(2, 4))
    assert found.in_contact[0].tolist() == [name != "trunk_touch" for name in names]


# Wrong sensors are refused


def test_a_sensor_without_force_is_refused_with_the_fix() -> None:
    message = refused(sensors=contact("bare"))
    assert message.startswith("env.sensors.feet: sensor bare: ")
    assert 'data="found force"' in message


def test_a_pattern_that_matches_no_contact_sensor_is_refused() -> None:
    assert refused(sensors=contact(".._touch", "gyro")).startswith("env.sensors.feet: contact sensors gyro: ")


def test_a_sensor_is_found_by_name_and_class() -> None:
    env = make(2, sensors=contact(".._touch"))
    assert env.sensor("feet", Sensor) is env.sensor("feet", Contact)
    with pytest.raises(UserError, match=r"^sensor hands: .* feet$"):
        env.sensor("hands", Contact)

    class Other(Sensor):
        pass

    with pytest.raises(UserError, match=r"^sensor feet: .* Contact\b.* Other\b"):
        env.sensor("feet", Other)
