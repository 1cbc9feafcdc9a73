"""quadruped-tracking: its motions match the robot's kinematics. The task runs in a real env."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from conftest import Command

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.env import Env
from mjlab_dist.mdp.data_files import MotionFile, read_motions
from mjlab_dist.sim import load_model
from mjlab_dist_tasks.quadruped_tracking.config import tracking

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_motions.py"
FILE = "mjlab_dist_tasks.quadruped_tracking:motions.npz"
FEET = ("FL_foot", "FR_foot", "RL_foot", "RR_foot")
RADIUS_M = 0.02


@pytest.fixture(scope="module")
def file() -> MotionFile:
    return read_motions(FILE)


def feet_of(file: MotionFile, motion: str) -> np.ndarray:
    """Return the positions of the feet in each frame, (frames, 4, 3), computed by MuJoCo's C code."""
    model: Any = load_model("mjlab_dist_tasks.quadruped:quadruped.xml")
    data: Any = mujoco.MjData(model)
    assert file.joints == tuple(model.joint(i).name for i in range(1, model.njnt))
    found = []
    for data.qpos[:] in file.motions[motion]:
        mujoco.mj_kinematics(model, data)
        found.append([data.site(foot).xpos.copy() for foot in FEET])
    return np.array(found)


@pytest.mark.slow
def test_the_script_generates_the_stored_motions(tmp_path: Path, file: MotionFile, command: Command) -> None:
    made = tmp_path / "motions.npz"
    done = command(command.script(SCRIPT.read_text()), "--output", str(made))
    assert done.code == 0, done.err
    again = read_motions(str(made))
    assert again.fps == file.fps
    assert again.joints == file.joints
    assert list(again.motions) == list(file.motions) == ["trot", "bound", "turn"]
    for name, frames in file.motions.items():
        np.testing.assert_allclose(again.motions[name], frames, atol=1e-9)


@pytest.mark.parametrize(
    ("motion", "together"), [("trot", [(0, 3), (1, 2)]), ("turn", [(0, 3), (1, 2)]), ("bound", [(0, 1), (2, 3)])]
)
def test_feet_stand_still_on_the_ground_in_pairs(
    file: MotionFile, motion: str, together: list[tuple[int, int]]
) -> None:
    feet = feet_of(file, motion)
    assert feet[..., 2].min() == pytest.approx(RADIUS_M, abs=1e-9)
    np.testing.assert_allclose(feet[..., 2].max(axis=0), RADIUS_M + 0.07, atol=1e-3)
    down = feet[..., 2] < RADIUS_M + 1e-9
    moved = np.linalg.norm(np.diff(feet[..., :2], axis=0), axis=2)
    stands = down[1:] & down[:-1]
    assert moved[stands].max() < 1e-9
    assert moved[~stands].min() > 1e-6
    assert 0.45 < down.mean() < 0.6
    for a, b in together:
        assert (down[:, a] == down[:, b]).all()
    assert (down.sum(axis=1) >= 2).all()


def test_the_motions_have_the_described_distances_and_angles(file: MotionFile) -> None:
    for name, forward_m, yaw_rad in (("trot", 0.3, 0.0), ("bound", 0.28, 0.0), ("turn", 0.15, 0.5)):
        frames = file.motions[name]
        np.testing.assert_allclose(frames[-1, 7:], frames[0, 7:], atol=1e-9)
        turn = np.zeros(3)
        mujoco.mju_subQuat(turn, frames[-1, 3:7], frames[0, 3:7])
        np.testing.assert_allclose(turn, [0.0, 0.0, yaw_rad], atol=1e-9)
        length = np.linalg.norm(np.diff(frames[:, :2], axis=0), axis=1).sum()
        assert length == pytest.approx(forward_m, rel=1e-3)
    pitch = 2 * np.arcsin(file.motions["bound"][:, 5])
    assert pitch.max() == pytest.approx(0.2, abs=0.01)
    # The trunk pitches down (positive about y) while the front feet are on the ground.
    front_stands = feet_of(file, "bound")[:, 0, 2] < RADIUS_M + 1e-9
    assert pitch[front_stands].mean() > 0.1
    assert pitch[~front_stands].mean() < -0.1
    limits: Any = load_model("mjlab_dist_tasks.quadruped:quadruped.xml").jnt_range[1:]
    for frames in file.motions.values():
        assert (frames[:, 7:] > limits[:, 0]).all()
        assert (frames[:, 7:] < limits[:, 1]).all()


@pytest.mark.slow
@pytest.mark.usefixtures("engine_of_gpus")
def test_robots_start_in_every_motion_and_earn_its_reward() -> None:
    torch.manual_seed(0)
    env = Env(tracking().env, 64, "cpu")
    with HostSyncs() as syncs:
        _, rewards, _, _ = env.step(torch.zeros(64, 12))
    assert not syncs.found
    # One step after the start, robots are close to the motion, whatever the actions. The maximum reward is 0.02.
    assert rewards.mean() > 0.7 * 0.02
    assert rewards.max() <= 0.02
    assert not env.terminated.any()
    speeds = env.sim.qvel[:, :2].norm(dim=1)
    assert (speeds < 0.45).any()
    assert (speeds > 0.55).any()
    for _ in range(100):
        env.step(torch.zeros(64, 12))
    # Without a policy, robots do not follow the motion, so episodes end and new ones start.
    assert (env.episode_length_buf < 100).any()
    assert env.sim.overflow.max() == 0
