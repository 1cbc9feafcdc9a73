"""Reference motions: targets, start states and rewards. Formulas and MuJoCo's C code give the expected values."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import DT_S, assert_resumes, end_episodes, float64, make, refused, step, term

from mjlab_dist.config import EventConfig, ParamValue
from mjlab_dist.env import Env
from mjlab_dist.mdp import motion as terms
from mjlab_dist.mdp.motion import Motion

MOTION = "mjlab_dist.mdp.motion"
JOINTS = ("RR_hip", "FL_hip", "FR_hip", "RL_hip")
"""Joints in the file, in a different order than in the model, and without the tail."""
PERIOD_S, YAW_RAD_S, SPEED_M_S = 0.36, 1.5, 0.6
STEPS = 36
ALL: dict[str, ParamValue] = {"command": "motion"}
START = {"start": EventConfig(func=f"{MOTION}:start_in_motion", params=ALL)}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """File with one cycle of a walk on a circle, and half a second of standing."""
    return write(tmp_path_factory.mktemp("motions") / "walk.npz")


def write(path: Path, fps: Any = 500, joints: Any = JOINTS, **motions: Any) -> str:
    frames = np.arange(round(PERIOD_S * 500) + 1) / 500
    still = np.tile(walk(0.0), (251, 1))
    np.savez(
        path, fps=fps, joints=joints, **(motions or {"circle": np.stack([walk(t) for t in frames]), "still": still})
    )
    return str(path)


def walk(time_s: float) -> np.ndarray:
    """Return position, orientation and joints of the walk on a circle. The base also pitches."""
    yaw, radius, phase = YAW_RAD_S * time_s, SPEED_M_S / YAW_RAD_S, 2 * math.pi * time_s / PERIOD_S
    about_z, about_y, quat = np.zeros(4), np.zeros(4), np.zeros(4)
    mujoco.mju_axisAngle2Quat(about_z, np.array([0.0, 0.0, 1.0]), yaw)
    mujoco.mju_axisAngle2Quat(about_y, np.array([0.0, 1.0, 0.0]), 0.1 * math.sin(phase))
    mujoco.mju_mulQuat(quat, about_z, about_y)
    position = [3.0 + radius * math.sin(yaw), -2.0 + radius * (1 - math.cos(yaw)), 0.3 + 0.02 * math.cos(phase)]
    return np.concatenate([position, quat, 0.3 * np.sin(phase + np.arange(4))])


def tracking(file: str, num_envs: int = 8, seed: int = 0, **params: Any) -> Env:
    """Return envs that track the walk on the circle."""
    given = {"file": file, "motions": ("circle",), "sites": (".._foot",), **params}
    return make(num_envs, seed, commands={"motion": term("motion:Motion", **given)}, events=START)


def played(env: Env) -> Motion:
    command = env.find_command("motion")
    assert isinstance(command, Motion)
    return command


def expected(time_s: float) -> np.ndarray:
    """Return the pose of the walk, with joints in the model's order."""
    order = [JOINTS.index(name) for name in sorted(JOINTS)]
    pose = walk(time_s)
    return np.concatenate([pose[:7], pose[7:][order]])


def difference(env: Env, before: np.ndarray, after: np.ndarray, time_s: float) -> np.ndarray:
    """Return the velocity of root and hips that leads from the pose `before` to the pose `after` in `time_s`."""
    model: Any = env.sim.model
    velocity, rest = np.zeros(model.nv), np.zeros(1)
    mujoco.mj_differentiatePos(model, velocity, time_s, np.append(before, rest), np.append(after, rest))
    return velocity[:-1]


def time_of(env: Env) -> np.ndarray:
    """Return the time of each env's target pose within the cycle of the motion."""
    frames = played(env).state()["frame"]
    return frames.numpy() * DT_S


# Playing a motion


def test_a_cyclic_motion_continues_along_its_circle(file: str) -> None:
    env = tracking(file)
    motion = played(env)
    began = float64(motion.value)
    times = [time_of(env)]
    for steps in range(1, 3 * STEPS + 1):
        motion.follow(env)
        times.append(time_of(env))
        for i in range(env.num_envs):
            time_s = times[0][i] + steps * DT_S
            now, start = expected(time_s), expected(float(times[0][i]))
            np.testing.assert_allclose(
                float64(motion.value)[i, :3] - began[i, :3], now[:3] - start[:3], atol=2e-4, err_msg=f"{steps} steps"
            )
            np.testing.assert_allclose(float64(motion.value)[i, 7:], now[7:], atol=1e-3)
            quat = float64(motion.value)[i, 3:7]
            np.testing.assert_allclose(quat * np.sign(quat @ now[3:7]), now[3:7], atol=2e-4)
    np.testing.assert_allclose(times[STEPS], times[0])


def test_velocities_are_those_of_the_poses(file: str) -> None:
    env = tracking(file, 4)
    motion = played(env)
    for _ in range(STEPS):
        times = time_of(env)
        for i in range(4):
            # At the ends of a cycle, the velocity is a one-sided difference, which is less exact.
            tolerance = 0.1 if 0 < round(times[i] / DT_S) < STEPS - 1 else 1.0
            time_s = float(times[i])
            wanted = difference(env, expected(time_s - 1e-4), expected(time_s + 1e-4), 2e-4)
            # Completed cycles have rotated the motion's anchor. Rotate the expected velocity in the same way.
            turned = float64(motion.state()["anchor"])[i, 2]
            cos, sin = math.cos(turned), math.sin(turned)
            wanted[:2] = [cos * wanted[0] - sin * wanted[1], sin * wanted[0] + cos * wanted[1]]
            np.testing.assert_allclose(float64(motion.velocity)[i], wanted, atol=tolerance)
        motion.follow(env)


@pytest.mark.parametrize("fps", [20, 90, 1000])
def test_frames_of_any_rate_are_resampled_to_control_steps(tmp_path: Path, fps: int) -> None:
    # Error of linear interpolation between two frames, for a sine with an amplitude of 0.3 rad.
    tolerance = 0.3 * (2 * math.pi / PERIOD_S / fps) ** 2 / 8 + 1e-4
    frames = np.arange(round(0.5 * fps) + 1) / fps
    env = tracking(write(tmp_path / "m.npz", fps, circle=np.stack([walk(t) for t in frames])), 2)
    motion = played(env)
    steps = int(motion.state()["frame"].max()) + 1
    for _ in range(60):
        motion.follow(env)
        steps = max(steps, int(motion.state()["frame"].max()) + 1)
        for i, time_s in enumerate(time_of(env)):
            np.testing.assert_allclose(float64(motion.value)[i, 7:], expected(float(time_s))[7:], atol=tolerance)
    assert steps == 50


def test_motions_are_chosen_by_name(file: str) -> None:
    for chosen, frames in ((("circle",), STEPS), (("still",), 50), ((".*",), STEPS + 50)):
        env = tracking(file, 400, motions=chosen)
        seen = played(env).state()["frame"].unique()
        assert seen.min() == 0
        assert seen.max() == frames - 1


# Starting an episode within a motion


def test_an_episode_starts_in_the_pose_of_the_motion(file: str) -> None:
    env = tracking(file, 400)
    motion = played(env)
    # The target pose is one step ahead of the state.
    at = (motion.state()["frame"].numpy() - 1) % STEPS
    counts = np.bincount(at, minlength=STEPS)
    assert (counts > 0).all()
    assert counts.max() < 30
    qpos, qvel = float64(env.sim.qpos), float64(env.sim.qvel)
    np.testing.assert_allclose(qpos[:, :2], 0.0, atol=1e-6)
    for i in range(0, 400, 40):
        now = expected(at[i] * DT_S)
        np.testing.assert_allclose(qpos[i, 2:7], now[2:7], atol=1e-4)
        np.testing.assert_allclose(qpos[i, 7:11], now[7:], atol=1e-3)
        ahead = difference(env, qpos[i, :11], float64(motion.value)[i], DT_S)
        np.testing.assert_allclose(qvel[i, :10], ahead, atol=2.0)
        np.testing.assert_allclose(qvel[i, :2], ahead[:2], atol=0.05)
    assert (qpos[:, 11] == 0).all()
    assert (qvel[:, 10] == 0).all()


def test_only_envs_whose_episode_ends_restart(file: str) -> None:
    env = tracking(file)
    for _ in range(5):
        step(env)
    ends = torch.tensor([True, False] * 4)
    before = time_of(env)
    end_episodes(env, ends)
    step(env)
    assert (env.episode_length_buf[ends] == 0).all()
    np.testing.assert_allclose(env.sim.qpos[ends, :2], 0.0, atol=1e-6)
    assert (env.sim.qpos[~ends, :2].norm(dim=1) > 1e-3).all()
    np.testing.assert_allclose(time_of(env)[~ends], ((before[~ends] / DT_S + 1) % STEPS) * DT_S)
    assert (played(env).state()["anchor"][~ends, 2] >= 0).all()
    assert (played(env).state()["anchor"][ends, 2] <= YAW_RAD_S * PERIOD_S + 1e-6).all()


def test_a_robot_that_follows_the_motion_exactly_earns_the_full_reward(file: str) -> None:
    env = tracking(file)
    motion = played(env)
    for _ in range(10):
        put(env, motion.value, motion.velocity)
        for reward in ("joints", "joint_velocities", "root_pose", "root_velocity"):
            earned = getattr(terms, f"imitate_{reward}")(env, "motion")
            torch.testing.assert_close(earned, torch.ones(8), atol=1e-5, rtol=0)
        assert not terms.lost(env, "motion", 1e-3, 1e-2).any()
        torch.testing.assert_close(terms.root_error(env, "motion"), torch.zeros(8, 6), atol=1e-3, rtol=0)
        # Targets of sites belong to the start of the last substep, so put the robot into the pose at that time.
        put(env, earlier(env, motion), motion.velocity)
        env.sim.forward()
        torch.testing.assert_close(motion.body_sites(env), motion.sites, atol=1e-4, rtol=0)
        torch.testing.assert_close(terms.imitate_sites(env, "motion"), torch.ones(8), atol=1e-4, rtol=0)
        motion.follow(env)


def put(env: Env, pose: torch.Tensor, velocity: torch.Tensor) -> None:
    env.sim.qpos[:, :11], env.sim.qvel[:, :10] = pose, velocity


def earlier(env: Env, motion: Motion) -> torch.Tensor:
    model: Any = env.sim.model
    poses = float64(motion.value)
    for pose, velocity in zip(poses, float64(motion.velocity), strict=True):
        whole = np.append(pose, 0.0)
        mujoco.mj_integratePos(model, whole, np.append(velocity, 0.0), -model.opt.timestep)
        pose[:] = whole[:-1]
    return torch.from_numpy(poses).float()


# Rewards and observations of a motion


def test_rewards_equal_the_formulas_of_the_paper_in_numpy(file: str) -> None:
    env = tracking(file)
    motion = played(env)
    rng = np.random.default_rng(0)
    env.sim.qpos[:, :3] += torch.from_numpy(rng.normal(size=(8, 3))) * 0.05
    env.sim.qpos[:, 3:7] = torch.nn.functional.normalize(
        env.sim.qpos[:, 3:7] + torch.from_numpy(rng.normal(size=(8, 4))) * 0.1
    )
    env.sim.qpos[:, 7:] += torch.from_numpy(rng.normal(size=(8, 5))) * 0.1
    env.sim.qvel += torch.from_numpy(rng.normal(size=(8, 11)))
    env.sim.forward()
    qpos, qvel, value, velocity = (float64(t) for t in (env.sim.qpos, env.sim.qvel, motion.value, motion.velocity))
    angle = np.array([angle_of(q, v) for q, v in zip(qpos, value, strict=True)])
    joints = ((value[:, 7:] - qpos[:, 7:11]) ** 2).sum(axis=1)
    joint_velocities = ((velocity[:, 6:] - qvel[:, 6:10]) ** 2).sum(axis=1)
    distance = ((value[:, :3] - qpos[:, :3]) ** 2).sum(axis=1)
    linear = ((velocity[:, :3] - qvel[:, :3]) ** 2).sum(axis=1)
    angular = ((velocity[:, 3:6] - qvel[:, 3:6]) ** 2).sum(axis=1)
    for earned, wanted in (
        (terms.imitate_joints(env, "motion"), np.exp(-5 * joints)),
        (terms.imitate_joint_velocities(env, "motion"), np.exp(-0.1 * joint_velocities)),
        (terms.imitate_root_pose(env, "motion"), np.exp(-20 * distance - 10 * angle**2)),
        (terms.imitate_root_velocity(env, "motion"), np.exp(-2 * linear - 0.2 * angular)),
        (terms.imitate_sites(env, "motion"), np.exp(-40 * site_errors(env, motion))),
        (terms.imitate_joints(env, "motion", gain=1.0), np.exp(-joints)),
    ):
        np.testing.assert_allclose(earned, wanted, atol=1e-4)
        assert 0 < wanted.min() < wanted.max() < 1
    far = terms.lost(env, "motion", float(np.sqrt(np.median(distance))), 10.0)
    assert far.sum() == 4
    turned = terms.lost(env, "motion", 10.0, float(np.median(angle)))
    assert turned.numpy().tolist() == (angle > np.median(angle)).tolist()


def angle_of(pose: np.ndarray, other: np.ndarray) -> float:
    turn = np.zeros(3)
    mujoco.mju_subQuat(turn, pose[3:7], other[3:7])
    return float(np.linalg.norm(turn))


def site_errors(env: Env, motion: Motion) -> np.ndarray:
    """Return the sums of the feet's squared distances to their targets in the trunk's frame."""
    model: Any = env.sim.model
    data: Any = mujoco.MjData(model)
    errors = np.zeros(env.num_envs)
    for i, qpos in enumerate(float64(env.sim.qpos)):
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        for k, foot in enumerate(("FL_foot", "FR_foot", "RL_foot", "RR_foot")):
            there = data.body("trunk").xmat.reshape(3, 3).T @ (data.site(foot).xpos - data.body("trunk").xpos)
            errors[i] += ((there - float64(motion.sites)[i, k]) ** 2).sum()
    return errors


def test_moving_by_the_root_error_reaches_the_target(file: str) -> None:
    env = tracking(file)
    motion = played(env)
    rng = np.random.default_rng(1)
    env.sim.qpos[:, :7] += torch.from_numpy(rng.normal(size=(8, 7))) * 0.3
    env.sim.qpos[:, 3:7] = torch.nn.functional.normalize(env.sim.qpos[:, 3:7])
    env.sim.qpos[3, 3:7] *= -1  # q and -q are the same orientation
    error = float64(terms.root_error(env, "motion"))
    assert np.linalg.norm(error[:, 3:], axis=1).max() <= math.pi + 1e-5
    for i, qpos in enumerate(float64(env.sim.qpos)):
        offset = np.zeros(3)
        mujoco.mju_rotVecQuat(offset, error[i, :3], qpos[3:7])
        np.testing.assert_allclose(qpos[:3] + offset, float64(motion.value)[i, :3], atol=1e-5)
        quat = qpos[3:7].copy()
        mujoco.mju_quatIntegrate(quat, error[i, 3:], 1.0)
        target = float64(motion.value)[i, 3:7]
        np.testing.assert_allclose(quat * np.sign(quat @ target), target, atol=1e-5)


def test_the_policy_observes_the_target(file: str) -> None:
    env = tracking(file)
    motion = played(env)
    home = torch.tensor([0.2, 0.2, -0.2, -0.2])
    torch.testing.assert_close(terms.joint_targets(env, "motion"), motion.value[:, 7:] - home)
    torch.testing.assert_close(terms.joint_target_velocities(env, "motion"), motion.velocity[:, 6:])
    seen = float64(terms.root_target_velocity(env, "motion"))
    for i, (value, velocity) in enumerate(zip(float64(motion.value), float64(motion.velocity), strict=True)):
        back, linear = np.zeros(4), np.zeros(3)
        mujoco.mju_negQuat(back, value[3:7])
        mujoco.mju_rotVecQuat(linear, velocity[:3], back)
        np.testing.assert_allclose(seen[i], [*linear, *velocity[3:6]], atol=1e-5)


def test_a_resumed_env_continues_the_motion(file: str) -> None:
    assert_resumes(lambda seed: tracking(file, seed=seed), 5, 40)


# Refused motions


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fps": 0}, " fps is 0"),
        ({"fps": [1, 2]}, " fps is [1, 2]"),
        ({"joints": ("FL_hip", "nose")}, "nose"),
        ({"joints": ("FL_hip", "FL_hip")}, "joints repeats a name (FL_hip, FL_hip)"),
        ({"walk": np.zeros((10, 5))}, " 11 "),
        ({"walk": np.zeros((1, 11))}, " 11 "),
        ({"walk": np.zeros((3, 11), dtype=bool)}, "walk has the type bool"),
        ({"walk": np.full((3, 11), np.nan)}, "frame 0"),
        ({"walk": np.zeros((3, 11))}, "columns 3 to 6 of frame 0"),
    ],
)
def test_invalid_motion_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    given = {"circle": np.stack([walk(0.0)] * 3), **changes}
    if "joints" in changes:
        given["circle"] = given["circle"][:, :9]
    assert message in refused_file(write(tmp_path / "m.npz", **given))


def test_files_that_are_not_motions_are_refused(tmp_path: Path, file: str) -> None:
    assert f" {tmp_path}/none.npz" in refused_file(str(tmp_path / "none.npz"))
    text = tmp_path / "text.npz"
    text.write_text("fps 50")
    assert f"motions {text}: " in refused_file(str(text))
    np.savez(tmp_path / "empty.npz", fps=50)
    assert " no joints" in refused_file(str(tmp_path / "empty.npz"))
    np.savez(tmp_path / "none.npz", fps=50, joints=JOINTS)
    assert " no motion" in refused_file(str(tmp_path / "none.npz"))
    assert re.search(r" run: .*circle, still", refused_file(file, motions=("run",)))


def refused_file(file: str, **params: Any) -> str:
    return refused(commands={"motion": term("motion:Motion", file=file, **params)})


def test_a_command_that_is_not_a_motion_is_refused() -> None:
    velocity = term("commands:Velocity", forward_m_s=(0.0, 1.0), left_m_s=(0.0, 0.0), yaw_rad_s=(0.0, 0.0))
    message = refused(commands={"motion": velocity}, events=START)
    assert re.search(r"command motion: .* Velocity\b.* Motion", message)
