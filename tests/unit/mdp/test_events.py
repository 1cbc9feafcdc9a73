"""Events: start states, pushes and their times. NumPy and MuJoCo's rotations give the expected values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import (
    DT_S,
    HOME,
    SIM,
    assert_independent,
    assert_resumes,
    assert_uniform,
    end_episodes,
    float64,
    make,
    randomize_state,
    refused,
    step,
)

from mjlab_dist.config import EventConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.env import Env
from mjlab_dist.mdp.events import DrawJoints, DrawRoot, Push, draw_joint_position, draw_velocities

EVENTS = "mjlab_dist.mdp.events"
TERMS = "env_terms_for_test"
MANY = 2000
"""Number of envs in tests of distributions."""


def event(name: str, when: Any = "reset", **params: Any) -> dict[str, EventConfig]:
    return {name: EventConfig(func=f"{EVENTS}:{name}", params=params, when=when)}


# Start states of joints


def test_joints_start_around_the_keyframe_and_within_their_limits() -> None:
    env = make(MANY, events=event("DrawJoints", position=(-0.5, 0.9), velocity=(-2.0, 1.0)))
    position = float64(env.sim.qpos[:, 7:] - HOME)
    for joint in range(4):
        home = float(HOME[joint])
        upper = 1.0 - home  # the joint's limit is 1 rad
        free = position[:, joint] < upper - 1e-6
        assert position[:, joint].max() <= upper + 1e-6
        assert (~free).mean() == pytest.approx(max(0.9 - upper, 0.0) / 1.4, abs=0.03)
        assert_uniform(position[free, joint], -0.5, min(0.9, upper))
    assert_uniform(position[:, 4], -0.5, 0.9)
    velocity = float64(env.sim.qvel[:, 6:])
    for joint in range(5):
        assert_uniform(velocity[:, joint], -2.0, 1.0)
    assert_independent(position[:, 2], position[:, 4], *velocity.T)
    assert torch.equal(env.sim.qpos[:, :7], env.reference.qpos[:, :7])
    assert not env.sim.qvel[:, :6].any()


def test_limits_hold_at_both_ends() -> None:
    env = make(64, events=event("DrawJoints", position=(-3.0, 3.0)))
    hips = env.sim.qpos[:, 7:11]
    assert (float(hips.min()), float(hips.max())) == (-1.0, 1.0)
    assert float(env.sim.qpos[:, 11].abs().max()) > 1.5  # the tail has no limit


def test_only_the_named_joints_are_drawn() -> None:
    env = make(64, events=event("DrawJoints", joints=("F._hip", "tail"), position=(0.1, 0.2), velocity=(1.0, 2.0)))
    moved = (env.sim.qpos[:, 7:] != HOME).all(dim=0)
    turning = (env.sim.qvel[:, 6:] != 0).all(dim=0)
    assert moved.tolist() == turning.tolist() == [True, True, False, False, True]
    assert torch.equal(env.sim.qpos[:, 9:11], HOME[2:4].expand(64, -1))


EVENTS_OF_SOME: dict[str, Callable[[Env], Callable[[Env, torch.Tensor], None]]] = {
    "joints": lambda env: DrawJoints(env, joints=("FR_hip", "RR_hip"), position=(-0.3, 0.3), velocity=(-1.0, 1.0)),
    "root": lambda env: DrawRoot(env, x_m=(-1.0, 1.0), yaw_rad=(-1.0, 1.0), angular_rad_s=(-1.0, 1.0)),
    "push": lambda env: Push(env, angular_rad_s=(-1.0, 1.0)),
    "position": lambda _: functools.partial(draw_joint_position, joint="tail", low=2.0, high=3.0),
    "velocities": lambda _: functools.partial(draw_velocities, std=1.0),
}


@pytest.mark.parametrize("term", EVENTS_OF_SOME)
def test_an_event_does_not_change_other_envs(term: str) -> None:
    env = make(32)
    randomize_state(env)
    happen = EVENTS_OF_SOME[term](env)
    for seed in range(3):
        mask = torch.rand(32, generator=torch.Generator().manual_seed(seed)) < 0.4
        before = torch.cat([env.sim.qpos, env.sim.qvel], dim=1)
        happen(env, mask)
        after = torch.cat([env.sim.qpos, env.sim.qvel], dim=1)
        assert torch.equal(after[~mask], before[~mask])
        assert (after[mask] != before[mask]).any(dim=1).all()


# Start states of a free-floating body


def euler_angles(quats: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rotation angles about the world's x, then y, then z axis, from MuJoCo's rotation matrices."""
    matrices = np.zeros((len(quats), 9))
    for matrix, quat in zip(matrices, quats, strict=True):
        mujoco.mju_quat2Mat(matrix, quat)
    return (
        np.arctan2(matrices[:, 7], matrices[:, 8]),
        -np.arcsin(matrices[:, 6].clip(-1, 1)),
        np.arctan2(matrices[:, 3], matrices[:, 0]),
    )


@pytest.mark.parametrize("keyframe", ["home", "turned"])
def test_a_body_starts_around_the_keyframe_and_the_origin(keyframe: str) -> None:
    env = make(
        MANY,
        sim=dataclasses.replace(SIM, keyframe=keyframe),
        events=event(
            "DrawRoot",
            x_m=(-1.0, 0.5),
            y_m=(0.0, 2.0),
            z_m=(0.1, 0.2),
            roll_rad=(-0.4, 0.2),
            pitch_rad=(-0.3, 0.6),
            yaw_rad=(-3.0, 3.0),
            linear_m_s=(-0.5, 1.0),
            angular_rad_s=(-2.0, 0.0),
        ),
    )
    origins = torch.rand(MANY, 3, generator=torch.Generator().manual_seed(1)) * 10
    env.origins.copy_(origins)
    env.reset()
    home = env.sim.model.key(keyframe).qpos
    position = float64(env.sim.qpos[:, :3]) - float64(origins) - home[:3]
    turns = np.zeros((MANY, 4))
    back = np.zeros(4)
    mujoco.mju_negQuat(back, home[3:7])
    for turn, quat in zip(turns, float64(env.sim.qpos[:, 3:7]), strict=True):
        mujoco.mju_mulQuat(turn, quat, back)
    np.testing.assert_allclose(np.linalg.norm(turns, axis=1), 1, rtol=0, atol=1e-6)
    angles = euler_angles(turns)
    velocity = float64(env.sim.qvel[:, :6])
    ranges = [(-1.0, 0.5), (0.0, 2.0), (0.1, 0.2), (-0.4, 0.2), (-0.3, 0.6), (-3.0, 3.0)]
    for values, (low, high) in zip((*position.T, *angles), ranges, strict=True):
        assert_uniform(values.clip(low, high), low, high)
        assert np.abs(values - values.clip(low, high)).max() < 1e-5
    for column in range(6):
        assert_uniform(velocity[:, column], *((-0.5, 1.0) if column < 3 else (-2.0, 0.0)))
    assert_independent(*position.T, *angles, *velocity.T)
    np.testing.assert_allclose(env.sim.qpos[:, 7:], np.tile(home[7:], (MANY, 1)), rtol=0, atol=1e-7)
    assert not env.sim.qvel[:, 6:].any()


def test_every_episode_starts_from_the_keyframe_and_not_from_the_previous_state() -> None:
    env = make(16, events={**event("DrawRoot", x_m=(-0.1, 0.1)), **event("DrawJoints", position=(-0.1, 0.1))})
    starts = []
    for _ in range(30):
        end_episodes(env, torch.ones(16, dtype=torch.bool))
        env.step(torch.randn(16, 4))
        starts.append(env.sim.qpos.clone())
    drawn = torch.stack(starts) - env.reference.qpos
    assert drawn[..., [0, *range(7, 12)]].abs().max() <= 0.1 + 1e-6
    assert (drawn[1:, :, 0] != drawn[:-1, :, 0]).all()
    assert not drawn[..., 1:7].any()


def test_events_run_in_config_order() -> None:
    draw = event("draw_joint_position", joint="tail", low=5.0, high=5.0)
    add = event("DrawJoints", joints=("tail",), position=(1.0, 1.0))
    assert make(2, events={**draw, **add}).sim.qpos[:, 11].tolist() == [6.0, 6.0]
    assert make(2, events={**add, **draw}).sim.qpos[:, 11].tolist() == [5.0, 5.0]


# Start states that a file contains


def states_file(path: Path, num_states: int, env: Env) -> tuple[np.ndarray, np.ndarray]:
    """Write random states, and return them."""
    rng = np.random.default_rng(0)
    qpos = np.tile(env.sim.model.key_qpos[0], (num_states, 1)) + rng.uniform(-0.1, 0.1, (num_states, env.sim.model.nq))
    qvel = rng.normal(size=(num_states, env.sim.model.nv))
    np.savez(path, qpos=qpos, qvel=qvel)
    return qpos.astype(np.float32), qvel.astype(np.float32)


def test_episodes_start_in_random_states_of_a_file(tmp_path: Path) -> None:
    qpos, qvel = states_file(tmp_path / "states.npz", 7, make(1))
    env = make(MANY, events=event("DrawStates", file=str(tmp_path / "states.npz")))

    def rows() -> np.ndarray:
        """Index of the state that each env is in."""
        found = (env.sim.qpos.numpy()[:, None] == qpos[None]).all(axis=2)
        assert (found.sum(axis=1) == 1).all()
        row = found.argmax(axis=1)
        assert np.array_equal(env.sim.qvel.numpy(), qvel[row])
        return row

    first = rows()
    np.testing.assert_allclose(np.bincount(first, minlength=7) / MANY, 1 / 7, atol=0.03)
    env.reset()
    assert (rows() != first).mean() > 0.7
    ends = torch.arange(MANY) % 2 == 0
    end_episodes(env, ends)
    step(env)
    in_file = (env.sim.qpos.numpy()[:, None] == qpos[None]).all(axis=2).any(axis=1)
    assert np.array_equal(in_file, ends.numpy())


def test_states_of_one_array_are_those_of_two(tmp_path: Path) -> None:
    qpos, qvel = states_file(tmp_path / "states.npz", 7, make(1))
    np.save(tmp_path / "states.npy", np.hstack([qpos, qvel]))
    one, two = (make(8, events=event("DrawStates", file=str(tmp_path / f"states.{end}"))) for end in ("npy", "npz"))
    assert torch.equal(one.sim.qpos, two.sim.qpos)
    assert torch.equal(one.sim.qvel, two.sim.qvel)


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        (np.zeros((3, 12)), "has the shape (3, 12); it must be (states, 23), 12 positions and then 11 velocities"),
        (np.zeros((0, 23)), "qpos has the shape (0, 12)"),
        (np.full((3, 23), np.nan), "qpos contains numbers that are not finite"),
        (np.zeros((3, 23), dtype=bool), "qpos has the type bool"),
        (np.array([{}] * 23), "is neither an npz file with the arrays qpos and qvel, nor an npy file"),
        ({"qpos": np.zeros((3, 12))}, "is neither an npz file with the arrays qpos and qvel, nor an npy file"),
        ({"qpos": np.zeros((3, 11)), "qvel": np.zeros((3, 11))}, "qpos has the shape (3, 11); it must be (states, 12)"),
        ({"qpos": np.zeros((3, 12)), "qvel": np.zeros((2, 11))}, "qvel has the shape (2, 11); it must be (states, 11)"),
    ],
)
def test_a_file_without_states_is_refused(tmp_path: Path, states: Any, problem: str) -> None:
    path = tmp_path / ("states.npz" if isinstance(states, dict) else "states.npy")
    if isinstance(states, dict):
        np.savez(path, **states)
    else:
        np.save(path, states)
    message = refused(events=event("DrawStates", file=str(path)))
    assert message.startswith(f"env.events.DrawStates: states {path}: {problem}")


def test_on_terrain_states_of_a_file_are_relative_to_the_origin(tmp_path: Path) -> None:
    qpos, _ = states_file(tmp_path / "states.npz", 1, make(1))
    terrain = TerrainConfig(parts={"flat": TerrainPartConfig(kind="flat")}, num_levels=2, num_columns=2, border_m=1.0)
    sim = dataclasses.replace(SIM, terrain=terrain)
    env = make(4, sim=sim, events=event("DrawStates", file=str(tmp_path / "states.npz")))
    assert env.origins.abs().max() > 1.0
    np.testing.assert_allclose(env.sim.qpos[:, :3], env.origins.numpy() + qpos[0, :3], atol=1e-5)
    np.testing.assert_array_equal(env.sim.qpos[:, 3:], np.tile(qpos[0, 3:], (4, 1)))


# Wrenches


@pytest.mark.slow
def test_a_wrench_accelerates_a_body_for_its_duration() -> None:
    """In the air, a force changes the robot's momentum by force * time."""
    wrench = event("Wrench", bodies=("trunk",), force_n=(-20.0, 40.0), duration_s=(3 * DT_S, 3 * DT_S))["Wrench"]
    env = make(MANY, events={"wrench": wrench.every(5 * DT_S, 5 * DT_S)}, episode_length_s=100.0, terminations={})
    applied, trunk = env.sim.view("xfrc_applied"), env.sim.model.body("trunk").id
    env.sim.qpos[:, 2] = 50.0
    seen, momenta = [], []
    for _ in range(16):
        step(env)
        seen.append(applied.clone())
        momenta.append(momentum(env))
    active = [bool(row.any()) for row in seen]
    assert active == [False] * 4 + [True] * 3 + [False] * 2 + [True] * 3 + [False] * 2 + [True] * 2
    force = float64(seen[4][:, trunk, :3])
    for axis in range(3):
        assert_uniform(force[:, axis], -20.0, 40.0)
    assert_independent(*force.T)
    assert torch.equal(seen[4], seen[6])
    assert not torch.equal(seen[4], seen[9])
    others = [body for body in range(env.sim.model.nbody) if body != trunk]
    assert not any(row[:, others].any() or row[:, trunk, 3:].any() for row in seen)
    weight_n = np.array([0, 0, -9.81]) * env.sim.model.body_mass.sum()
    gained = momenta[7] - momenta[4] - 3 * DT_S * weight_n
    np.testing.assert_allclose(gained, force[:MEASURED] * 3 * DT_S, rtol=0.02, atol=0.02)


MEASURED = 50
"""Number of envs whose momentum is measured."""


def momentum(env: Env) -> np.ndarray:
    """Return the linear momentum of the first envs in kg m/s, computed by MuJoCo's C code."""
    found = []
    for i in range(MEASURED):
        data = mujoco.MjData(env.sim.model)
        data.qpos, data.qvel = float64(env.sim.qpos[i]), float64(env.sim.qvel[i])
        mujoco.mj_forward(env.sim.model, data)
        mujoco.mj_subtreeVel(env.sim.model, data)
        found.append(data.subtree_linvel[0] * env.sim.model.body_mass.sum())
    return np.array(found)


def test_a_wrench_ends_with_the_episode_and_is_resumed() -> None:
    wrench = event("Wrench", bodies=("trunk", "tail"), torque_n_m=(1.0, 2.0), duration_s=(0.05, 0.5))["Wrench"]
    events = {"it": wrench.every(0.2, 0.3)}
    env = assert_resumes(lambda seed: make(8, seed, events=events, terminations={}), 40)
    assert env.sim.view("xfrc_applied").any()
    end_episodes(env, torch.ones(8, dtype=torch.bool))
    step(env)
    assert not env.sim.view("xfrc_applied").any()


# Times of events


def test_startup_events_run_once_before_the_first_episode() -> None:
    startup = EventConfig(func=f"{TERMS}:move_origin", params={"by_m": 3.0}, when="startup")
    env = make(4, events={**event("DrawRoot"), "far": startup})
    for _ in range(2):
        assert env.origins[:, 0].tolist() == [3.0] * 4
        assert env.sim.qpos[:, 0].tolist() == [3.0] * 4
        end_episodes(env, torch.ones(4, dtype=torch.bool))
        step(env)
        env.reset()


def test_a_reset_event_runs_in_envs_whose_episode_starts() -> None:
    env = make(4, events={"far": EventConfig(func=f"{TERMS}:move_origin", params={"by_m": 1.0})})
    assert env.origins[:, 0].tolist() == [1.0] * 4
    end_episodes(env, torch.tensor([False, True, False, True]))
    step(env)
    assert env.origins[:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]
    step(env)
    assert env.origins[:, 0].tolist() == [1.0, 2.0, 1.0, 2.0]


class Twin:
    """Runs steps of envs, and of copies without events. Both start each step from the same state."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.other = make(env.num_envs, config=dataclasses.replace(env.cfg, events={}))

    def step(self, actions: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return the differences of positions and velocities after a step."""
        for name, tensor in self.other.sim.state().items():
            tensor.copy_(self.env.sim.state()[name])
        self.env.step(actions)
        self.other.step(actions)
        return (
            float64(self.env.sim.qpos) - float64(self.other.sim.qpos),
            float64(self.env.sim.qvel) - float64(self.other.sim.qvel),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [(0.05, 0.14), (0.1, 0.1)])
def test_pushes_change_velocities_at_intervals_that_start_with_the_episode(low: float, high: float) -> None:
    num_envs, num_steps = 48, 150
    push = event("Push", linear_m_s=(-0.4, 0.8), angular_rad_s=(0.1, 0.3))["Push"].every(low, high)
    env = make(num_envs, events={"push": push}, episode_length_s=100.0)
    twin = Twin(env)
    rng = np.random.default_rng(0)
    since = np.zeros(num_envs)
    gaps: list[float] = []
    pushes = []
    counts = np.zeros(num_envs)
    for _ in range(num_steps):
        ends = (rng.random(num_envs) < 0.02) & (np.arange(num_envs) % 2 == 0)
        end_episodes(env, torch.from_numpy(ends))
        moved, shoved = twin.step(0.5 * torch.randn(num_envs, 4))
        going = ~ends
        assert not moved[going].any()
        assert not env.sim.qvel[torch.from_numpy(ends)].any()
        since += DT_S
        pushed = shoved.any(axis=1) & going
        gaps += list(since[pushed])
        counts += pushed
        assert (since[going & ~pushed] < high + 0.5 * DT_S).all()
        since[pushed | ends] = 0
        pushes.append(shoved[pushed])
    found, shoves = np.array(gaps), np.concatenate(pushes)
    assert found.min() > low - 0.5 * DT_S - 1e-9
    assert found.max() < high + 0.5 * DT_S + 1e-9
    whole = counts[1::2]  # only envs whose episode does not end
    mean_s = (low + high) / 2
    assert whole.mean() == pytest.approx(num_steps * DT_S / mean_s, abs=1 if low < high else 0)
    assert (whole.min() < whole.max()) == (low < high)
    assert_uniform(shoves[:, 0], -0.4, 0.8)
    assert_uniform(shoves[:, 1], -0.4, 0.8)
    for column in (3, 4, 5):
        assert_uniform(shoves[:, column], 0.1, 0.3)
    assert_independent(*shoves[:, [0, 1, 3, 4, 5]].T)
    assert np.abs(shoves[:, [2, *range(6, 11)]]).max() == 0


def test_by_default_a_push_is_horizontal_and_without_rotation() -> None:
    env = make(512)
    before = env.sim.qvel.clone()
    Push(env)(env, torch.ones(512, dtype=torch.bool))
    change = float64(env.sim.qvel - before)
    assert_uniform(change[:, 0], -0.5, 0.5)
    assert_uniform(change[:, 1], -0.5, 0.5)
    assert not change[:, 2:].any()


def test_the_first_push_of_an_episode_follows_a_whole_interval() -> None:
    """A reset of all envs, or of one env during a step, starts the interval again."""
    every = EventConfig(func=f"{TERMS}:Counts", when="interval", interval_s=(0.05, 0.05))
    env = make(4, events={"count": every}, episode_length_s=100.0)
    for _ in range(3):
        step(env)
    env.reset()
    counts = []
    for now in range(1, 16):
        if now == 8:
            end_episodes(env, torch.tensor([False, True, False, False]))
        step(env)
        counts.append(env.state()["events.count.times"].tolist()[:2])
    # Env 0 is pushed in steps 5, 10 and 15. Env 1 starts a new episode in step 8, and is pushed in steps 5 and 13.
    assert [count[0] for count in counts] == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3]
    assert [count[1] for count in counts] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]


# Wrong events are refused


@pytest.mark.parametrize(("joints", "start"), [(("(",), "joints (: "), ((), "joints: "), (("root",), "joints root: ")])
def test_joints_that_an_event_cannot_draw_are_refused(joints: tuple[str, ...], start: str) -> None:
    assert refused(events=event("DrawJoints", joints=joints)).startswith(f"env.events.DrawJoints: {start}")
