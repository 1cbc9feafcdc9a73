"""Exported files compute the same actions as the policy, even when they control a robot in plain MuJoCo."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from configs import with_flags
from conftest import Command

import mjlab_dist_tasks.quadruped
from mjlab_dist.config import registry
from mjlab_dist.config.task import without_disturbances
from mjlab_dist.errors import Exit
from mjlab_dist.policies import load_env_and_policy
from mjlab_dist.runs.run_dir import PRETRAINED, find_checkpoint, read_config_file
from mjlab_dist.sim import build_model

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"

pytestmark = pytest.mark.slow

TASKS = {
    "cartpole-balance": (),
    "gym-half-cheetah": ("--agent.obs-normalization",),
    "arm-reach": (),
    "quadruped-velocity-flat": (
        *("--agent.rnn", "lstm", "--agent.rnn-hidden-dim", "16", "--agent.obs-normalization"),
        *("--agent.obs-clip", "5", "--env.observations.actor.gravity.history", "3"),
        *("--env.observations.actor.joint_velocities.clip", "-2", "2"),
        # Without headings, so that the command does not depend on the robot's state
        *("--env.commands.velocity.params.heading_share", "0"),
        *("--agent.symmetry.use-data-augmentation", "False"),
    ),
}
"""Flags for training each task. tests/unit/policies/test_export.py tests more combinations."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that trains a task briefly, exports the policy, and returns the run directory."""
    place = tmp_path_factory.mktemp("export")
    runs: dict[str, Path] = {}

    def run_of(task: str) -> Path:
        if task not in runs:
            command = Command("export", place)
            done = command.here(
                "train", task, "--gpu-ids", "None", "--num-envs", "16", "--max-iterations", "2", *TASKS[task]
            )
            assert done.code == 0, done.err
            done = command.here("mjlab-dist", "export", task)
            assert done.code == 0, done.err + done.out
            (runs[task],) = (place / "logs" / task).iterdir()
        return runs[task]

    return run_of


def metadata(run: Path) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(run / "exported" / "policy.onnx")
    return {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}


def start_of_episode(run: Path) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """Return an env of one robot without disturbances, its policy, and the values of its commands."""
    config = read_config_file(run)
    config = dataclasses.replace(config, env=without_disturbances(config.env))
    env, policy = load_env_and_policy(config, find_checkpoint(run), 1, 3)
    env.reset()
    return env, policy, {name: env.command(name)[0].numpy().copy() for name in config.env.commands}


@pytest.fixture
def deploy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example program deploy.py as a module."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    monkeypatch.delitem(sys.modules, "deploy", raising=False)
    return importlib.import_module("deploy")


@pytest.mark.parametrize(("task", "num_steps", "tolerance"), [
    ("cartpole-balance", 100, 1e-4),
    pytest.param("gym-half-cheetah", 20, 1e-4, marks=pytest.mark.long),
    pytest.param("arm-reach", 50, 1e-4, marks=pytest.mark.long),
    ("quadruped-velocity-flat", 15, 1e-4),
])  # fmt: skip
def test_plain_mujoco_follows_our_env(
    exported: Callable[[str], Path], deploy: Any, task: str, num_steps: int, tolerance: float
) -> None:
    run = exported(task)
    env, policy, commands = start_of_episode(run)
    qpos, qvel = env.sim.qpos[0].numpy().astype(float), env.sim.qvel[0].numpy().astype(float)
    obs, states, inputs = env.get_observations(), [qpos], []
    with torch.inference_mode():
        for _ in range(num_steps):
            obs, _, dones, _ = env.step(policy(obs))
            assert not dones.any()
            states.append(env.sim.qpos[0].numpy().copy())
            inputs.append(env.sim.ctrl[0].numpy().copy())
    positions, _, ctrl, _ = deploy.run(run / "exported", num_steps * env.step_dt_s, commands, qpos, qvel)
    assert np.abs(positions - np.array(states)).max() < tolerance
    assert np.abs(ctrl - np.array(inputs)).max() < tolerance
    # Check that this test can fail: with joints in a different order, the states differ
    measure = deploy.measure

    def reversed_joints(term: dict[str, Any], *args: Any) -> np.ndarray:
        values = np.asarray(measure(term, *args))
        return values[::-1] if term["term"].endswith((":JointPositions", ":positions", ":pole_direction")) else values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deploy, "measure", reversed_joints)
        positions, *_ = deploy.run(run / "exported", num_steps * env.step_dt_s, commands, qpos, qvel)
    assert np.abs(positions - np.array(states)).max() > 10 * tolerance


def test_the_description_lists_what_a_robot_must_measure(exported: Callable[[str], Path]) -> None:
    about = metadata(exported("quadruped-velocity-flat"))
    observed = {term["name"]: term for term in about["observations"]}
    legs = [f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf")]
    assert observed["joint_positions"]["joints"] == legs
    assert observed["joint_positions"]["columns"] == [12, 24]
    assert observed["joint_velocities"]["scale"] == 0.05
    assert observed["joint_velocities"]["clip"] == [-2, 2]
    assert observed["gravity"]["history"] == 3
    assert observed["last_action"]["columns"] is None
    assert observed["joint_velocities"]["uniform_noise"] == 1.5, "of training"
    # Observations, actions and joints list the same start position for each joint
    start = {joint["name"]: joint["start"][0] for joint in about["joints"] if joint["name"] in legs}
    assert observed["joint_positions"]["joint_start"] == [start[leg] for leg in legs]
    names = [target["actuator"] for target in about["targets"]]
    drives = {actuator["name"]: actuator for actuator in about["actuators"]}
    assert [drives[name]["joint"] for name in names] == [action["name"] for action in about["actions"]] == legs


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
def test_the_files_hold_the_same_policy(exported: Callable[[str], Path]) -> None:
    run = exported("quadruped-velocity-flat")
    files = {"description.json": ""}
    script = torch.jit.load(run / "exported" / "policy.pt", _extra_files=files)
    about = metadata(run)
    assert json.loads(files["description.json"]) == about
    session = onnxruntime.InferenceSession(run / "exported" / "policy.onnx")
    rng = np.random.default_rng(1)
    for num_rows in (1, 5):
        obs = rng.normal(size=(num_rows, about["observations"][-1]["columns"][1])).astype(np.float32)
        state = rng.normal(size=(num_rows, about["state_size"])).astype(np.float32)
        outputs = session.run(None, {"obs": obs, "state": state})
        for given, expected in zip(outputs, script(torch.tensor(obs), torch.tensor(state)), strict=True):
            np.testing.assert_allclose(np.asarray(given), expected.detach().numpy(), atol=1e-6)
    model = onnx.load(run / "exported" / "policy.onnx")
    assert [one.name for one in model.graph.output] == ["actions", "targets", "next_state"]


def test_policies_that_cannot_be_exported_are_refused_in_one_line(
    exported: Callable[[str], Path], command: Command
) -> None:
    run = exported("cartpole-balance")
    (command.cwd / "file").touch()
    for flags, named in (
        (("cartpole-swingup", "--checkpoint", str(run / "checkpoints" / "latest.pt")), "cartpole-swingup"),
        (("cartpole-balance", "--run", str(run), "--output", "file"), "--output file"),
        (("cartpole-balance", "--run", str(run), "--output", "file/below"), "--output file/below"),
        (("cartpole-balance", "--run", str(run), "--num-checked", "0"), "--num-checked 0"),
        (("cartpole-balance", "--run", "missing"), "missing"),
        ((), "cartpole-balance"),
    ):
        done = command.here("mjlab-dist", "export", *flags)
        assert done.code == Exit.USAGE, done.err
        assert named in done.err.splitlines()[-1]
        assert len(done.err.splitlines()) == 1, done.err
    assert [file.name for file in command.cwd.iterdir()] == ["file"]


def test_the_table_shows_the_columns_of_each_observation(exported: Callable[[str], Path], command: Command) -> None:
    done = command.here("mjlab-dist", "export", "cartpole-balance", "--run", str(exported("cartpole-balance")))
    assert done.code == 0, done.err
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in done.out.splitlines() if "│" in line]
    assert rows[:3] == [["cart_position", "0"], ["pole_direction", "1 to 2"], ["cart_velocity", "3"]]


def test_the_example_runs_as_a_program(exported: Callable[[str], Path], command: Command) -> None:
    run, name = exported("quadruped-velocity-flat"), "states.npz"
    done = command(
        "python", str(DEPLOY / "deploy.py"), str(run / "exported"),
        "--seconds", "0.2", "--command", "velocity=0.5,0,0", "--output", name,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.startswith("10 control steps; ")
    wrong = command("python", str(DEPLOY / "deploy.py"), str(run / "exported"), "--command", "speed=0.5")
    assert wrong.code == 2
    assert "velocity" in wrong.err
    assert np.load(command.cwd / name)["qpos"].shape == (11, 19)


def cartpole_reward(qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:
    """Return the reward of each step, as dm_control's suite computes it for its task cartpole balance."""

    def tolerance(x: np.ndarray, margin: float) -> np.ndarray:
        return 0.1 ** ((x / margin) ** 2)

    small_control = (4 + 1 - np.clip(ctrl[:, 0], -1, 1) ** 2) / 5
    centered, at_rest = (1 + tolerance(qpos[1:, 0], 2)) / 2, (1 + tolerance(qvel[1:, 1], 5)) / 2
    return (1 + np.cos(qpos[1:, 1])) / 2 * centered * at_rest * small_control


def cheetah_reward(qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:  # noqa: ARG001
    """Return the reward of each step, as Gymnasium computes it."""
    return np.diff(qpos[:, 0]) / 0.05 - 0.1 * (ctrl**2).sum(axis=1)


def tracking_reward(qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:  # noqa: ARG001
    """Return the quadruped's reward for tracking the command to walk forward at 0.5 m/s, for each step."""
    speed = np.array([rotation_of(q[3:7]).T @ v[:3] for q, v in zip(qpos[1:], qvel[1:], strict=True)])
    return 1.5 * 0.02 * np.exp(-((speed[:, :2] - [0.5, 0.0]) ** 2).sum(axis=1) / 0.25)


def reaching_reward(qpos: np.ndarray, qvel: np.ndarray, ctrl: np.ndarray) -> np.ndarray:  # noqa: ARG001
    """Return the arm's reward for a small distance between gripper and target, for each step."""
    model = build_model(registry.task_config("arm-reach").env.sim)
    data, site = mujoco.MjData(model), model.site("gripper").id
    rewards: list[float] = []
    for one in qpos[1:]:
        data.qpos[:] = one
        mujoco.mj_kinematics(model, data)
        rewards.append(0.5 * 0.02 * (1 - np.tanh(np.linalg.norm(data.site_xpos[site] - REACHED[:3]) / 0.3)))
    return np.array(rewards)


def rotation_of(quat: np.ndarray) -> np.ndarray:
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)


REACHED = np.array([0.5, 0.1, 0.3, 0.0, 1.0, 0.0, 0.0])
"""Value of the arm's command: position and quaternion of the target."""


def constant(command: str, **values: float) -> tuple[str, ...]:
    flags = [(f"--env.commands.{command}.params.{name}", str(value), str(value)) for name, value in values.items()]
    return tuple(word for flag in flags for word in flag)


@pytest.mark.parametrize(("task", "training", "flags", "commands", "column", "reward"), [
    pytest.param(
        "cartpole-balance", ("--num-envs", "128", "--max-iterations", "60"), (), {}, "return", cartpole_reward,
        marks=pytest.mark.long,
    ),
    pytest.param(
        "gym-half-cheetah", ("--max-iterations", "80"), ("--env.episode-length-s", "10"), {}, "return", cheetah_reward,
        marks=pytest.mark.long,
    ),
    pytest.param(
        "arm-reach", ("--num-envs", "64", "--max-iterations", "60"),
        constant("target", x_m=0.5, y_m=0.1, z_m=0.3, yaw_rad=0.0), {"target": REACHED}, "reward/near", reaching_reward,
        marks=pytest.mark.long,
    ),
    pytest.param(
        "quadruped-velocity-flat", None,
        (
            *constant("velocity", forward_m_s=0.5, left_m_s=0.0, yaw_rad_s=0.0), "--env.episode-length-s", "5",
            "--env.commands.velocity.params.standing_share", "0", "--env.commands.velocity.params.heading_share", "0",
        ),
        {"velocity": np.array([0.5, 0.0, 0.0])}, "reward/track_linear_velocity", tracking_reward,
        marks=pytest.mark.long,
    ),
])  # fmt: skip
def test_plain_mujoco_reaches_the_return_of_evaluate(
    command: Command, deploy: Any, *, task: str, training: tuple[str, ...] | None, flags: tuple[str, ...],
    commands: dict[str, np.ndarray], column: str, reward: Callable[..., np.ndarray],
) -> None:  # fmt: skip
    # A trained policy, from a new run or from the package
    run = Path(mjlab_dist_tasks.quadruped.__file__).parent / PRETRAINED / f"{task}.zip"
    if training is not None:
        done = command.here("train", task, "--gpu-ids", "None", *training)
        assert done.code == 0, done.err
        (run,) = (command.cwd / "logs" / task).iterdir()
    done = command.here("mjlab-dist", "export", task, "--run", str(run), "--output", "files")
    assert done.code == 0, done.err
    # The policy's return in the task's env
    evaluate = ("mjlab-dist", "evaluate", task, "--run", str(run), "--gpu-ids", "None", "--no-disturbances")
    done = command.here(*evaluate, *flags, "--num-episodes", "64", "--json")
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)["results"]
    expected = result["columns"][column]
    # The policy's return in plain MuJoCo, from other start states
    config = read_config_file(run)
    config = with_flags(dataclasses.replace(config, env=without_disturbances(config.env)), flags)
    env, _ = load_env_and_policy(config, find_checkpoint(run), 16, 5)
    env.reset()
    returns = [
        reward(*deploy.run(command.cwd / "files", config.env.episode_length_s, commands, qpos, qvel)[:3]).sum()
        for qpos, qvel in zip(env.sim.qpos.numpy().astype(float), env.sim.qvel.numpy().astype(float), strict=True)
    ]
    print(task, column, expected, np.mean(returns), np.std(returns))
    errors = ((expected["high"] - expected["mean"]) / 1.96, np.std(returns, ddof=1) / np.sqrt(len(returns)))
    assert abs(np.mean(returns) - expected["mean"]) < 4 * np.hypot(*errors)
