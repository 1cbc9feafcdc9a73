"""Rewards, terminations and observations that tasks share. MuJoCo's C code and NumPy give the expected values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import (
    CONFIG,
    FEET,
    HOME,
    c_copies,
    c_step,
    end_episodes,
    event,
    float64,
    make,
    observe,
    randomize_state,
    refused,
    reward,
    term,
    termination,
)

from mjlab_dist.config import ActionConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.rewards import JointLimits
from mjlab_dist.mdp.sensors import Contact

NUM_ENVS = 32
SENSORS = {
    "feet": term("sensors:Contact", sensors=(".._touch",)),
    "trunk": term("sensors:Contact", sensors=("trunk_touch",)),
}
RANGES = {"forward_m_s": (-1.0, 1.0), "left_m_s": (-0.5, 0.5), "yaw_rad_s": (-1.0, 1.0)}
COMMANDS = {"velocity": term("commands:Velocity", **RANGES, standing_share=0.3)}
SCATTER = {
    "root": event(
        "DrawRoot",
        z_m=(-0.1, 0.4),
        roll_rad=(-1.5, 1.5),
        pitch_rad=(-1.5, 1.5),
        yaw_rad=(-3.0, 3.0),
        linear_m_s=(-1.0, 1.0),
        angular_rad_s=(-2.0, 2.0),
    ),
    "joints": event("DrawJoints", position=(-1.5, 1.5), velocity=(-3.0, 3.0)),
}
"""Various start states: on the floor and in the air, rotated and moving."""

EVERYTHING = dataclasses.replace(CONFIG, sensors=SENSORS, commands=COMMANDS, events=SCATTER, episode_length_s=100.0)


class Oracle:
    """The state after a step in float64, with quantities that MuJoCo's C code computes."""

    def __init__(self, env: Env) -> None:
        self.qpos, self.qvel = float64(env.sim.qpos), float64(env.sim.qvel)
        self.command = float64(env.command("velocity"))
        self.copies = c_copies(env)
        for data in self.copies:
            mujoco.mj_forward(env.sim.model, data)
        self.rotation = np.stack([data.body("trunk").xmat.reshape(3, 3) for data in self.copies])
        self.linear = np.einsum("nij,ni->nj", self.rotation, self.qvel[:, :3])
        """Velocity in the trunk's frame: the transpose of R times the velocity in the world's frame."""
        self.angular = np.stack([data.sensor("gyro").data for data in self.copies])
        self.joints, self.joint_velocities = self.qpos[:, 7:], self.qvel[:, 6:]
        self.upright = self.rotation[:, 2, 2]

    def in_heading(self) -> np.ndarray:
        """Return the horizontal velocity in the frame of the heading, (num_envs, 2)."""
        ahead = self.rotation[:, :2, 0] / np.linalg.norm(self.rotation[:, :2, 0], axis=1, keepdims=True)
        left = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
        return np.stack([(ahead * self.qvel[:, :2]).sum(1), (left * self.qvel[:, :2]).sum(1)], axis=1)


Expected = Callable[[Oracle], np.ndarray]

OBSERVATIONS: dict[str, tuple[str, dict[str, Any], Expected]] = {
    "joint": ("joint_position", {"joint": "FR_hip"}, lambda o: o.qpos[:, 8:9]),
    "joint velocity": ("joint_velocity", {"joint": "tail"}, lambda o: o.qvel[:, 10:11]),
    "joints": ("JointPositions", {"joints": ("tail", ".R_hip")}, lambda o: (o.joints - HOME.numpy())[:, [1, 3, 4]]),
    "angles": (
        "JointAngles",
        {"joints": ("tail", ".R_hip")},
        lambda o: np.concatenate([f((o.joints - HOME.numpy())[:, [1, 3, 4]]) for f in (np.sin, np.cos)], axis=1),
    ),
    "velocities": ("JointVelocities", {"joints": (".L_hip",)}, lambda o: o.joint_velocities[:, [0, 2]]),
    "linear": ("base_linear_velocity", {}, lambda o: o.linear),
    "angular": ("base_angular_velocity", {}, lambda o: o.angular),
    "height": ("base_height", {}, lambda o: o.qpos[:, 2:3]),
    "gravity": ("projected_gravity", {}, lambda o: -o.rotation[:, 2]),
    "command": ("command", {"name": "velocity"}, lambda o: o.command),
    "friction": (
        "model_field",
        {"field": "geom_friction"},
        lambda o: np.tile(o.copies[0].model.geom_friction.ravel(), (NUM_ENVS, 1)),
    ),
}  # fmt: skip


def test_observations_are_computed_from_the_state_after_the_step() -> None:
    terms = {name: observe(func, params) for name, (func, params, _) in OBSERVATIONS.items()}
    env = make(NUM_ENVS, config=EVERYTHING, observations={"actor": terms})
    for step in range(10):
        if step == 5:
            end_episodes(env, torch.arange(NUM_ENVS) % 2 == 0)
        observed = env.step(0.3 * torch.randn(NUM_ENVS, 4))[0]["actor"]
        oracle = Oracle(env)
        assert (oracle.upright < 0.5).any()
        for name, where in env.observation_columns()["actor"].items():
            np.testing.assert_allclose(
                observed[:, where], OBSERVATIONS[name][2](oracle), rtol=0, atol=1e-5, err_msg=name
            )


def test_sensors_measure_the_start_of_the_last_substep_or_the_current_state() -> None:
    for forward in (False, True):
        env = make(
            NUM_ENVS,
            config=EVERYTHING,
            sim=dataclasses.replace(CONFIG.sim, forward_before_observation=forward),
            observations={"actor": {"gyro": observe("sensor", {"name": "gyro"})}},
        )
        copies = c_copies(env)
        actions = 0.3 * torch.randn(NUM_ENVS, 4)
        observed = env.step(actions)[0]["actor"]
        c_step(env, copies, inputs(actions))
        if forward:
            copies = c_copies(env)
            for data in copies:
                mujoco.mj_forward(env.sim.model, data)
        expected = np.stack([data.sensor("gyro").data for data in copies])
        np.testing.assert_allclose(observed, expected, rtol=0, atol=1e-4)
        assert np.allclose(observed, float64(env.sim.qvel[:, 3:6]), atol=1e-5) == forward


def inputs(actions: torch.Tensor) -> np.ndarray:
    """Return the actuator inputs of actions, (num_envs, 6)."""
    return np.hstack([float64(HOME[:4] + 0.5 * actions), np.zeros((len(actions), 2))])


def test_the_last_action_is_observed_and_0_where_an_episode_starts() -> None:
    env = make(4, observations={"actor": {"action": observe("last_action")}})
    ends = torch.tensor([False, True, False, True])
    end_episodes(env, ends)
    actions = torch.randn(4, 4)
    observed = env.step(actions)[0]["actor"]
    assert torch.equal(observed, torch.where(ends.unsqueeze(1), 0.0, actions))


def test_observed_contacts_equal_those_of_the_sensor() -> None:
    terms = {name: observe(name, {"sensor": "feet"}) for name in ("in_contact", "contact_force", "air_time")}
    env = make(NUM_ENVS, config=EVERYTHING, observations={"actor": terms})
    for _ in range(10):
        env.step(torch.zeros(NUM_ENVS, 4))
    observed = env.get_observations()["actor"]
    feet = env.sensor("feet", Contact)
    assert feet.in_contact.any()
    assert not feet.in_contact.all()
    assert torch.equal(observed[:, :4], feet.in_contact.float())
    assert torch.equal(observed[:, 4:16].view(-1, 4, 3), feet.force_n)
    assert torch.equal(observed[:, 16:], feet.air_time_s)


def squares(values: np.ndarray) -> np.ndarray:
    return (values**2).sum(axis=1)


def limits(share: float) -> Expected:
    def expected(o: Oracle) -> np.ndarray:
        hips = o.joints[:, :4]
        return np.maximum(np.abs(hips) - share, 0).sum(axis=1)  # the hips' range is -1 to 1; the tail has no range

    return expected


STATE_REWARDS: dict[str, tuple[str, dict[str, Any], Expected]] = {
    "linear": (
        "track_linear_velocity",
        {"command": "velocity", "std_m_s": 0.7},
        lambda o: np.exp(-squares(o.command[:, :2] - o.linear[:, :2]) / 0.7**2),
    ),
    "heading": (
        "track_heading_velocity",
        {"command": "velocity", "std_m_s": 0.6},
        lambda o: np.exp(-squares(o.command[:, :2] - o.in_heading()) / 0.6**2),
    ),
    "yaw": (
        "track_yaw_rate",
        {"command": "velocity", "std_rad_s": 0.8},
        lambda o: np.exp(-((o.command[:, 2] - o.angular[:, 2]) ** 2) / 0.8**2),
    ),
    "vertical": ("vertical_velocity", {}, lambda o: o.linear[:, 2] ** 2),
    "tilt rate": ("tilt_rate", {}, lambda o: squares(o.angular[:, :2])),
    "tilt": ("tilt", {}, lambda o: np.sin(np.arccos(o.upright)) ** 2),
    "height": ("height_error", {"target_m": 0.3}, lambda o: (o.qpos[:, 2] - 0.3) ** 2),
    "velocity": ("JointVelocity", {"joints": ("F._hip", "tail")}, lambda o: squares(o.joint_velocities[:, [0, 1, 4]])),
    "deviation": ("JointDeviation", {}, lambda o: np.abs(o.joints - HOME.numpy()).sum(axis=1)),
    "limits": ("JointLimits", {"share": 0.3, "joints": ("tail", ".._hip")}, limits(0.3)),
    "still": (
        "stand_still",
        {"command": "velocity"},
        lambda o: squares(o.linear[:, :2]) * (np.linalg.norm(o.command, axis=1) < 0.1),
    ),
}


def sum_of(env: Env, name: str) -> torch.Tensor:
    """Return the sum of one term's rewards in the current episode, (num_envs,)."""
    return env.state()["episode_sums"][:, env.reward_names.index(name)]


def test_rewards_are_computed_from_the_state_after_the_step() -> None:
    rewards = {name: reward(func, **params) for name, (func, params, _) in STATE_REWARDS.items()}
    env = make(NUM_ENVS, config=EVERYTHING, rewards=rewards)
    for _ in range(6):
        env.reset()
        command = float64(env.command("velocity"))
        _, total, dones, _ = env.step(0.5 * torch.randn(NUM_ENVS, 4))
        assert not dones.any()  # so the current state is the rewarded state
        oracle = Oracle(env)
        assert np.array_equal(oracle.command, command)
        for name, (_, _, expected) in STATE_REWARDS.items():
            told = expected(oracle)
            assert np.ptp(told) > 0.01, name
            np.testing.assert_allclose(sum_of(env, name), told, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(total, env.state()["episode_sums"].sum(dim=1), rtol=1e-5, atol=1e-4)


def test_by_default_the_outer_tenth_of_a_joint_range_is_penalized() -> None:
    env = make(3)
    env.sim.qpos[:, 7:] = torch.tensor([[0.85, -0.85, 0, 0, 9], [0.95, -1.0, 0, 0, 0], [1.2, 1.0, -1.1, 0, 0]])
    assert JointLimits(env)(env).tolist() == pytest.approx([0, 0.05 + 0.1, 0.3 + 0.1 + 0.2], abs=1e-6)


def test_rewards_of_actions_are_sums_of_squares() -> None:
    rewards = {name: reward(name) for name in ("action_rate", "action_size")}
    env = make(NUM_ENVS, rewards=rewards, episode_length_s=100.0)
    before = np.zeros((NUM_ENVS, 4))
    sums = np.zeros((NUM_ENVS, 2))
    for step in range(4):
        actions = 0.3 * torch.randn(NUM_ENVS, 4)
        env.step(actions)
        now = float64(actions)
        sums += np.stack([squares(now - before), squares(now)], axis=1)
        before = now
        np.testing.assert_allclose(env.state()["episode_sums"], sums, rtol=1e-5, atol=1e-6, err_msg=str(step))


def test_actuator_forces_are_of_the_last_substep() -> None:
    env = make(
        NUM_ENVS,
        config=EVERYTHING,
        rewards={"force": reward("actuator_force")},
        actions={"all": ActionConfig(actuators=(".*_leg", "tail"))},
    )
    copies = c_copies(env)
    actions = 0.5 * torch.randn(NUM_ENVS, 5)
    _, rewards, _, _ = env.step(actions)
    c_step(env, copies, np.hstack([float64(actions), np.zeros((NUM_ENVS, 1))]))
    expected = [(data.actuator_force**2).sum() for data in copies]
    np.testing.assert_allclose(rewards, expected, rtol=1e-3, atol=1e-2)


def test_joint_accelerations_are_changes_of_velocity_within_the_episode() -> None:
    rewards = {"all": reward("JointAcceleration"), "some": reward("JointAcceleration", 0.0, joints=(".L_hip",))}
    env = make(NUM_ENVS, config=EVERYTHING, rewards=rewards)
    for step in range(8):
        before = float64(env.sim.qvel)[:, 6:]
        sums = float64(env.state()["episode_sums"])
        ends = torch.arange(NUM_ENVS) % 3 == step
        end_episodes(env, ends)
        _, rewards, _, _ = env.step(0.3 * torch.randn(NUM_ENVS, 4))
        acceleration = (float64(env.sim.qvel)[:, 6:] - before) / 0.01
        going = ~ends.numpy()
        np.testing.assert_allclose(rewards[going], squares(acceleration)[going], rtol=1e-3, atol=1.0)
        some = (float64(env.state()["episode_sums"]) - sums)[:, 1]
        np.testing.assert_allclose(some[going], squares(acceleration[:, [0, 2]])[going], rtol=1e-2, atol=30.0)


def test_alive_and_terminated_follow_the_reason_of_an_episode_end() -> None:
    env = make(
        6,
        rewards={"alive": reward("alive"), "terminated": reward("terminated", -10.0)},
        terminations={"low": termination("terminations:too_low", min_m=0.2)},
    )
    env.sim.qpos[:2, 2] = 0.1
    end_episodes(env, torch.tensor([False, True, True, False, False, False]))
    _, rewards, dones, extras = env.step(torch.zeros(6, 4))
    assert rewards.tolist() == [-10.0, -10.0, 1.0, 1.0, 1.0, 1.0]
    assert dones.tolist() == [True, True, True, False, False, False]
    assert extras["time_outs"].tolist() == [False, False, True, False, False, False]
    assert env.terminated.tolist() == [True, True, False, False, False, False]
    assert env.timed_out.tolist() == [False, True, True, False, False, False]


# Contacts


def test_contact_rewards_follow_the_sensors() -> None:
    velocities = tuple(f"{foot}_velocity" for foot in FEET)
    env = make(
        NUM_ENVS,
        config=EVERYTHING,
        commands={"velocity": term("commands:Velocity", **RANGES, standing_share=0.3, resample_s=(0.2, 0.4))},
        rewards={
            "touch": reward("contacts", sensor="feet"),
            "hard": reward("contacts", sensor="feet", min_n=15.0),
            "slip": reward("FootSlip", sensor="feet", velocities=velocities),
            "air": reward("feet_air_time", sensor="feet", command="velocity", min_s=0.05, moving_m_s=0.2),
        },
        events={"root": event("DrawRoot", z_m=(0.0, 0.2), linear_m_s=(-0.5, 0.5))},
    )
    air_s = np.zeros((NUM_ENVS, 4))
    seen = dict.fromkeys(env.reward_names, 0.0)
    sums = np.zeros((NUM_ENVS, 4))
    for _ in range(60):
        actions = 0.8 * torch.randn(NUM_ENVS, 4)
        command, copies = float64(env.command("velocity")), c_copies(env)
        env.step(actions)
        c_step(env, copies, inputs(actions))
        touch = np.array([[data.sensor(f"{foot}_touch").data for foot in FEET] for data in copies])
        velocity = np.array([[data.sensor(name).data for name in velocities] for data in copies])
        found, force = touch[..., 0] > 0, np.linalg.norm(touch[..., 1:], axis=2)
        air_s += 0.01
        landed = found & (air_s > 0.015)
        moves = np.linalg.norm(command[:, :2], axis=1) > 0.2
        expected = {
            "touch": found.sum(1),
            "hard": (found & (force >= 15)).sum(1),
            "slip": ((velocity[..., :2] ** 2).sum(2) * found).sum(1),
            "air": ((air_s - 0.05) * landed).sum(1) * moves,
        }
        air_s[found] = 0
        now = float64(env.state()["episode_sums"])
        for column, (name, values) in enumerate(expected.items()):
            told = (now - sums)[:, column]
            seen[name] += float(np.abs(values).sum())
            if name == "hard":  # skip forces that are too close to the threshold
                near = (np.abs(force - 15) < 0.1).any(axis=1)
                assert np.array_equal(told.round(3)[~near], values[~near].astype(float))
            else:
                np.testing.assert_allclose(told, values, rtol=2e-2, atol=2e-3, err_msg=name)
        sums = now
    assert all(total > 1 for total in seen.values()), seen


def test_the_number_of_velocities_must_equal_the_number_of_feet() -> None:
    rewards = {"slip": reward("FootSlip", sensor="feet", velocities=("FL_velocity",))}
    assert re.match("env.rewards.slip: foot slip: 1 velocity .* 4 feet", refused(config=EVERYTHING, rewards=rewards))


# Terminations


ENDS: list[tuple[str, dict[str, Any], Expected]] = [
    ("tilted", {"max_rad": 1.1}, lambda o: np.arccos(o.upright) > 1.1),
    ("too_low", {"min_m": 0.5}, lambda o: o.qpos[:, 2] < 0.5),
    (
        "joint_out_of_range",
        {"joint": "FR_hip", "low": -0.2, "high": 0.3},
        lambda o: (o.qpos[:, 8] < -0.2) | (o.qpos[:, 8] > 0.3),
    ),
    ("joint_out_of_range", {"joint": "FR_hip", "high": 0.1}, lambda o: o.qpos[:, 8] > 0.1),
    ("out_of_bounds", {"max_m": 0.8}, lambda o: np.hypot(o.qpos[:, 0], o.qpos[:, 1]) > 0.8),
]


@pytest.mark.parametrize(("func", "params", "expected"), ENDS)
def test_terminations_of_the_state(func: str, params: dict[str, Any], expected: Expected) -> None:
    twin = make(NUM_ENVS, config=EVERYTHING)
    env = make(NUM_ENVS, config=EVERYTHING, terminations={"it": termination(f"terminations:{func}", **params)})
    for each in (twin, env):
        randomize_state(each)
        _, _, dones, extras = each.step(torch.zeros(NUM_ENVS, 4))
        assert not extras["time_outs"].any()
    assert 3 < dones.sum() < NUM_ENVS - 3
    assert np.array_equal(dones, expected(Oracle(twin)))


def test_height_and_bounds_are_relative_to_the_origin_of_the_env() -> None:
    env = make(3, terminations={"far": termination("terminations:out_of_bounds", max_m=1.0)})
    origins = torch.tensor([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0], [0.0, 0.0, -0.5]])
    env.origins.copy_(origins)
    assert env.step(torch.zeros(3, 4))[2].tolist() == [False, True, False]
    env = make(3, terminations={"low": termination("terminations:too_low", min_m=0.2)})
    env.origins.copy_(-origins)
    assert env.step(torch.zeros(3, 4))[2].tolist() == [False, False, True]


def test_leaving_a_tile_needs_terrain() -> None:
    env = make(2, terminations={"it": termination("terminations:left_tile")})
    with pytest.raises(UserError, match="left_tile: the task has no terrain"):
        env.step(torch.zeros(2, 4))


@pytest.mark.parametrize("min_n", [0.0, 60.0])
def test_a_strong_enough_contact_of_the_trunk_ends_an_episode(min_n: float) -> None:
    env = make(
        NUM_ENVS,
        config=dataclasses.replace(EVERYTHING, events={}),
        terminations={"fall": termination("terminations:illegal_contact", sensor="trunk", min_n=min_n)},
    )
    env.sim.qpos[:, 2] = torch.linspace(0.044, 0.056, NUM_ENVS)
    env.sim.qpos[:, 3:7] = torch.tensor([0.0, 1.0, 0.0, 0.0])  # on its back
    copies = c_copies(env)
    dones = env.step(torch.zeros(NUM_ENVS, 4))[2]
    force = []
    c_step(env, copies, inputs(torch.zeros(NUM_ENVS, 4)))
    for data in copies:
        found, *vector = data.sensor("trunk_touch").data
        force.append(float(np.linalg.norm(vector)) if found else -1.0)
    assert dones.tolist() == [one >= min_n for one in force]
    assert 2 < int(dones.sum()) < NUM_ENVS - 2
    assert min_n == 0 or any(0 < one < min_n for one in force)


def test_a_nan_state_ends_an_episode() -> None:
    env = make(5, terminations={"nan": termination("terminations:not_finite")})
    env.sim.qvel[1, 4] = float("nan")
    env.sim.qpos[3, 8] = float("inf")
    _, _, dones, extras = env.step(torch.zeros(5, 4))
    assert dones.tolist() == [False, True, False, True, False]
    assert not extras["time_outs"].any()
    assert env.sim.qpos.isfinite().all()
    assert env.sim.qvel.isfinite().all()
