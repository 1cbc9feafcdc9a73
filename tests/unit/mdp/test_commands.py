"""Commands are compared with values that tests compute in NumPy: times and ranges of sampling, and headings."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from env_terms_for_test import LastCommand, Remembering
from legged import DT_S, assert_independent, assert_uniform, end_episodes, float64, make, refused, step, term

from mjlab_dist.config import EventConfig, TermConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.commands import Velocity

RANGES = {"forward_m_s": (-0.5, 1.5), "left_m_s": (0.2, 0.4), "yaw_rad_s": (-2.0, 1.0)}
MANY = 2000
"""Number of envs in tests of shares and distributions."""


def velocity(**params: Any) -> dict[str, TermConfig]:
    return {"velocity": term("commands:Velocity", **{**RANGES, **params})}


def pose(**params: Any) -> dict[str, TermConfig]:
    ranges = {"x_m": (-1.0, 1.0), "y_m": (0.0, 0.5), "z_m": (0.2, 0.3)}
    return {"pose": term("commands:Pose", **{**ranges, **params})}


def heading_of(env: Env) -> np.ndarray:
    """Return the heading of every robot, from rotation matrices that MuJoCo's C code computes."""
    matrices = np.zeros((env.num_envs, 9))
    for matrix, quat in zip(matrices, float64(env.sim.qpos[:, 3:7]), strict=True):
        mujoco.mju_quat2Mat(matrix, quat)
    return np.arctan2(matrices[:, 3], matrices[:, 0])


# Velocity


def test_velocities_are_drawn_from_their_ranges_when_an_episode_starts() -> None:
    env = make(MANY, commands=velocity())
    value = float64(env.command("velocity"))
    for column, (low, high) in enumerate(RANGES.values()):
        assert_uniform(value[:, column], low, high)
    assert_independent(*value.T)
    assert env.command("velocity").shape == (MANY, 3)


@pytest.mark.parametrize(("low", "high"), [(0.05, 0.15), (0.1, 0.1)])
def test_a_command_is_resampled_only_in_envs_whose_time_is_up(low: float, high: float) -> None:
    num_envs = 60
    env = make(num_envs, commands=velocity(resample_s=(low, high)), episode_length_s=100.0)
    rng = np.random.default_rng(0)
    before = float64(env.command("velocity"))
    since = np.zeros(num_envs)
    gaps: list[float] = []
    for _ in range(100):
        ends = rng.random(num_envs) < 0.02
        end_episodes(env, torch.from_numpy(ends))
        step(env)
        now = float64(env.command("velocity"))
        changed = (now != before).any(axis=1)
        since += DT_S
        assert changed[ends].all()
        gaps += list(since[changed & ~ends])
        assert (since[~changed] < high + 0.5 * DT_S + 1e-9).all()
        since[changed] = 0
        before = now
    found = np.array(gaps)
    assert len(found) > 500
    assert found.min() > low - 0.5 * DT_S - 1e-9
    assert found.max() < high + 0.5 * DT_S + 1e-9
    assert found.mean() == pytest.approx((low + high) / 2, abs=0.1 * DT_S + 0.1 * (high - low))
    assert len(np.unique(found.round(6))) == (1 if low == high else 11)


def test_a_reset_of_all_envs_resamples_commands() -> None:
    env = make(8, commands=velocity())
    before = env.command("velocity").clone()
    env.reset()
    assert (env.command("velocity") != before).all()
    command = env.find_command("velocity")
    assert command.left_s.tolist() == [10.0] * 8


def test_a_fraction_of_the_commands_is_zero() -> None:
    env = make(MANY, commands=velocity(standing_share=0.25))
    value = float64(env.command("velocity"))
    stands = ~value.any(axis=1)
    assert stands.mean() == pytest.approx(0.25, abs=0.035)
    assert value[~stands].all()
    assert_uniform(value[~stands, 0], *RANGES["forward_m_s"])
    for share, stand in ((0.0, 0), (1.0, 64)):
        env = make(64, commands=velocity(standing_share=share))
        assert int((~env.command("velocity").any(dim=1)).sum()) == stand


def test_the_yaw_rate_is_proportional_to_the_heading_error() -> None:
    given = velocity(heading_share=0.6, standing_share=0.3, heading_gain=0.8, resample_s=(0.05, 0.2))
    env = make(MANY, commands=given, events={})
    command = env.find_command("velocity")
    assert isinstance(command, Velocity)
    for turn in range(4):
        quat = torch.randn(MANY, 4, generator=torch.Generator().manual_seed(turn))
        env.sim.qpos[:, 3:7] = quat / quat.norm(dim=1, keepdim=True)
        free = ~command.has_heading
        before = command.value.clone()
        step(env)
        value, told, has = float64(command.value), float64(command.heading_rad), command.has_heading.numpy()
        left = np.angle(np.exp(1j * (told - heading_of(env))))
        expected = np.clip(0.8 * left, *RANGES["yaw_rad_s"])
        near_half_a_turn = np.abs(np.abs(left) - np.pi) < 1e-3
        np.testing.assert_allclose(
            value[has & ~near_half_a_turn, 2], expected[has & ~near_half_a_turn], rtol=0, atol=1e-3
        )
        assert (expected == RANGES["yaw_rad_s"][1])[has].any()
        stands = ~value.any(axis=1)
        assert not (stands & has).any()
        assert has.mean() == pytest.approx(0.7 * 0.6, abs=0.04)
        assert_uniform(told, -np.pi, np.pi)
        kept = (free & ~command.has_heading & (command.value[:, :2] == before[:, :2]).all(dim=1)).numpy()
        assert kept.sum() > 100
        assert np.array_equal(value[kept], float64(before)[kept])


def test_changed_ranges_apply_from_the_next_draw() -> None:
    env = make(256, commands=velocity(resample_s=(0.03, 0.03)))
    command = env.find_command("velocity")
    command.ranges[0] = torch.tensor([3.0, 4.0])
    step(env)
    assert (env.command("velocity")[:, 0] < 2).all()
    for _ in range(3):
        step(env)
    assert ((env.command("velocity")[:, 0] >= 3) & (env.command("velocity")[:, 0] <= 4)).all()


# Pose


def test_poses_are_drawn_around_the_origin_of_the_env_once_per_episode() -> None:
    env = make(MANY, commands=pose(roll_rad=(-0.5, 0.5), pitch_rad=(-1.0, 0.2), yaw_rad=(-3.0, 3.0)))
    origins = torch.stack([torch.arange(float(MANY)), -torch.arange(float(MANY)), torch.full((MANY,), 0.5)], dim=1)
    env.origins.copy_(origins)
    env.reset()
    value = float64(env.command("pose"))
    offset = value[:, :3] - origins.double().numpy()
    for column, (low, high) in enumerate(((-1.0, 1.0), (0.0, 0.5), (0.2, 0.3))):
        assert_uniform(offset[:, column].clip(low, high), low, high)
        # At 2,000 m, float32 numbers are 0.1 mm apart.
        assert np.abs(offset[:, column] - offset[:, column].clip(low, high)).max() < 1e-3
    matrices = np.zeros((MANY, 9))
    for matrix, quat in zip(matrices, value[:, 3:], strict=True):
        mujoco.mju_quat2Mat(matrix, quat)
    np.testing.assert_allclose(np.linalg.norm(value[:, 3:], axis=1), 1, rtol=0, atol=1e-6)
    assert_uniform(np.arctan2(matrices[:, 7], matrices[:, 8]), -0.5, 0.5)
    assert_uniform(-np.arcsin(matrices[:, 6]), -1.0, 0.2)
    assert_uniform(np.arctan2(matrices[:, 3], matrices[:, 0]), -3.0, 3.0)

    ends = torch.arange(MANY) % 2 == 0
    end_episodes(env, ends)
    step(env)
    changed = (env.command("pose") != torch.from_numpy(value)).any(dim=1)
    assert torch.equal(changed, ends)


def test_a_pose_without_rotation_is_upright() -> None:
    env = make(4, commands=pose())
    assert env.command("pose")[:, 3:].tolist() == [[1.0, 0.0, 0.0, 0.0]] * 4


# The order of commands, reset events and curricula


def test_reset_events_read_the_command_of_the_new_episode_and_curricula_that_of_the_last_one() -> None:
    env = make(
        MANY,
        commands=pose(),
        events={"there": EventConfig(func="env_terms_for_test:go_to_command", params={"command": "pose"})},
        curricula={"last": TermConfig(func="env_terms_for_test:LastCommand", params={"command": "pose"})},
    )
    last = env._curricula["last"]
    assert isinstance(last, LastCommand)
    assert torch.equal(env.sim.qpos[:, :3], env.command("pose")[:, :3])
    before, ends = env.command("pose").clone(), torch.arange(MANY) % 2 == 0
    end_episodes(env, ends)
    step(env)
    assert (env.command("pose")[ends] != before[ends]).any(dim=1).all()
    assert torch.equal(env.command("pose")[~ends], before[~ends])
    assert torch.equal(env.sim.qpos[ends, :3], env.command("pose")[ends, :3])
    assert torch.equal(last.value[ends], before[ends])


def test_a_command_is_cleared_and_reset_before_it_is_drawn_and_follows_the_start_state() -> None:
    env = make(
        4,
        commands={"odd": TermConfig(func="env_terms_for_test:Remembering")},
        events={"up": EventConfig(func="env_terms_for_test:lift", params={"z_m": 3.0})},
    )
    command = env.find_command("odd")
    assert isinstance(command, Remembering)
    ends = torch.tensor([True, False, False, True])
    end_episodes(env, ends)
    step(env)
    assert command.draws.tolist() == [1.0] * 4
    assert command.height_at_draw_m.tolist() == [float(env.reference.qpos[0, 2])] * 4
    assert command.value[ends, 0].tolist() == [3.0] * 2


# Several commands, and wrong configs


def test_several_commands_have_independent_timers() -> None:
    env = make(8, commands={**velocity(resample_s=(0.03, 0.03)), **pose(resample_s=(0.05, 0.05))})
    drawn: dict[str, list[int]] = {"velocity": [], "pose": []}
    before = {name: env.command(name).clone() for name in drawn}
    for now in range(1, 16):
        step(env)
        for name, found in drawn.items():
            if not torch.equal(env.command(name), before[name]):
                found.append(now)
            before[name] = env.command(name).clone()
    assert drawn == {"velocity": [3, 6, 9, 12, 15], "pose": [5, 10, 15]}


def test_an_unknown_command_is_refused_with_the_available_commands() -> None:
    env = make(2, commands={**velocity(), **pose()})
    for find in (env.command, env.find_command):
        with pytest.raises(UserError, match=r"^command speed: .* velocity, pose$"):
            find("speed")


def test_mistakes_in_a_command_are_refused() -> None:
    assert "1.0 to -1.0 " in refused(commands=velocity(forward_m_s=(1.0, -1.0)))
    assert "2.0 to 1.0 " in refused(commands=velocity(resample_s=(2.0, 1.0)))
    message = refused(commands={"odd": term("sensors:Contact", sensors=(".._touch",))})
    assert message.startswith("--env.commands.odd.func mjlab_dist.mdp.sensors:Contact: ")
    assert "Command" in message.partition(": ")[2]
