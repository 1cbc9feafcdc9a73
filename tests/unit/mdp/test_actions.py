"""Action terms compute the same inputs as MuJoCo's C code, NumPy or formulas.

Resetting some envs does not affect the others. All terms resume exactly.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import manipulator
import mujoco
import numpy as np
import pytest
import torch
from legged import assert_resumes, end_episodes, float64
from manipulator import ARM, BLOCKS, SIM, drawn, make

from mjlab_dist.config import ActionConfig
from mjlab_dist.config.terms import action
from mjlab_dist.env import Env
from mjlab_dist.env.actions import Action
from mjlab_dist.mdp import actions
from mjlab_dist.mdp.actions import DifferentialIK

NUM_ENVS = 6


def block_of(env: Env, name: str) -> Action:
    term = env.terms[f"actions.{name}"]
    assert isinstance(term, Action)
    return term


def ctrl_of(env: Env, *actuators: str) -> np.ndarray:
    return float64(env.sim.ctrl[:, [env.sim.model.actuator(name).id for name in actuators]])


def scattered(**changes: Any) -> Env:
    """Return envs in the middle of an episode, each in a different state."""
    env = make(NUM_ENVS, **changes)
    for seed in range(3):
        env.step(drawn(env, seed))
    return env


def refused(block: ActionConfig) -> str:
    return manipulator.refused(actions={"some": block})


# Properties of every class


@pytest.mark.parametrize("name", BLOCKS)
def test_a_resumed_env_repeats_every_bit(name: str) -> None:
    assert_resumes(lambda seed: make(NUM_ENVS, seed, actions={"block": BLOCKS[name]}), 20, 20)


@pytest.mark.parametrize("name", BLOCKS)
def test_an_episode_depends_on_nothing_before_it_and_resets_leave_other_envs_alone(name: str) -> None:
    params = BLOCKS[name].params
    fixed = {**params, "delay": (4, 4)} if "delay" in params else params
    block = dataclasses.replace(BLOCKS[name], latency=(1, 1), params=fixed)
    changes: dict[str, Any] = {"actions": {"block": block}, "events": {}}
    fresh, used, undisturbed = make(3, **changes), make(3, **changes), make(3, **changes)
    for seed in range(10):
        used.step(drawn(used, seed))
        undisturbed.step(drawn(undisturbed, seed))
    end_episodes(used, torch.tensor([False, True, False]))
    used.step(drawn(used, 10))
    undisturbed.step(drawn(undisturbed, 10))
    for seed in range(11, 16):
        for env in (fresh, used, undisturbed):
            env.step(drawn(env, seed))
    assert torch.equal(used.sim.qpos[1], fresh.sim.qpos[1])
    assert torch.equal(used.sim.qpos[[0, 2]], undisturbed.sim.qpos[[0, 2]])
    assert not torch.equal(used.sim.qpos[1], undisturbed.sim.qpos[1])


def test_blocks_side_by_side_drive_their_own_actuators() -> None:
    names = ("ik", "limits", "binary")
    blocks = {name: BLOCKS[name] for name in ("ik", "binary")}
    blocks["limits"] = dataclasses.replace(BLOCKS["limits"], actuators=("muscle", "thrust"))
    together = make(NUM_ENVS, actions=blocks)
    assert together.action_names[5:] == ["ik.rz", "binary.open", "muscle", "thrust"]
    alone = {name: make(NUM_ENVS, actions={name: blocks[name]}) for name in names}
    given = drawn(together, 0)
    together.step(given)
    columns = {"ik": slice(0, 6), "binary": slice(6, 7), "limits": slice(7, 9)}
    for name, env in alone.items():
        env.step(given[:, columns[name]])
        driven = list(block_of(env, name).block.ids)
        assert torch.equal(env.sim.ctrl[:, driven], together.sim.ctrl[:, driven])
        others = [i for i in range(env.sim.model.nu) if i not in driven]
        assert not env.sim.ctrl[:, others].any()
    assert not ctrl_of(together, "cord").any()


def test_scales_and_offsets_by_regular_expression() -> None:
    block = ActionConfig(
        actuators=("a.", "cord"), scale={"a[12]": 0.5, "a.": 0.25, "cord": 3.0}, offset={"a1": 1.0, ".*": -1.0}
    )
    env = make(2, actions={"some": block})
    env.step(torch.ones(2, 7))
    expected = [1.5, -0.5, -0.75, -0.75, -0.75, -0.75, 2.0]
    np.testing.assert_allclose(ctrl_of(env, *env.action_names), [expected] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scale": {"a1": 1.0, "b.": 2.0, ".*": 1.0}}, "--env.actions.some.scale b.: matches none of a1"),
        ({"scale": {"a[1-5]": 1.0}}, "--env.actions.some.scale a[1-5]: has no number for a6; add one"),
        ({"actuators": ("a1", "a.")}, "--env.actions.some.actuators a.: a1 is already driven by some; "),
        ({"offset": {"(": 1.0}}, "--env.actions.some.offset (: is not a regular expression"),
        ({"scale": float("nan")}, "--env.actions.some.scale nan: is not a number"),
        ({"func": "mjlab_dist.mdp.rewards:alive"}, "--env.actions.some.func mjlab_dist.mdp.rewards:alive: does not"),
        ({"func": "mjlab_dist.mdp.actions:Smoothed"}, "--env.actions.some.func mjlab_dist.mdp.actions:Smoothed: "),
    ],
)
def test_a_block_that_does_not_fit_is_refused(fields: dict[str, Any], expected: str) -> None:
    assert refused(dataclasses.replace(ActionConfig(actuators=ARM), **fields)).startswith(expected)


# Results of single classes


@pytest.mark.slow
def test_relative_positions_start_from_the_current_ones() -> None:
    env = scattered(actions={"some": action(actions.RelativeJointPosition, ARM).processed(scale=0.5, clip=(-1.0, 1.0))})
    before, given = float64(env.sim.qpos[:, :6]), drawn(env, 9)
    env.step(given)
    expected = before + 0.5 * float64(given).clip(-1, 1)
    np.testing.assert_allclose(ctrl_of(env, *(f"a{i}" for i in range(1, 7))), expected, rtol=0, atol=1e-6)
    message = refused(action(actions.RelativeJointPosition, ("muscle",)))
    assert message.startswith("--env.actions.some.actuators muscle: drives no hinge or slide joint")
    home = action(actions.RelativeJointPosition, ARM).processed(offset="home")
    assert refused(home).startswith("--env.actions.some.offset home: ")


def test_smoothed_inputs_are_an_exponential_moving_average_that_starts_at_the_offset() -> None:
    alpha, offset = 0.25, np.array([0.3, -0.6, 1.1, 0.2, 0.4, -0.3])
    smoothed = action(actions.Smoothed, ARM, alpha=alpha).processed(scale=0.5, offset="home")
    env = make(NUM_ENVS, actions={"some": smoothed})
    expected = np.tile(offset, (NUM_ENVS, 1))
    for seed in range(12):
        ends = torch.arange(NUM_ENVS) == (seed if seed % 2 else -1)
        end_episodes(env, ends)
        given = drawn(env, seed)
        expected = (1 - alpha) * expected + alpha * (offset + 0.5 * float64(given))
        env.step(given)
        seen = ctrl_of(env, *env.action_names)
        np.testing.assert_allclose(seen[~ends.numpy()], expected[~ends.numpy()], rtol=0, atol=1e-5)
        expected[ends.numpy()] = offset
    assert refused(action(actions.Smoothed, ARM, alpha=0.0)).startswith("--env.actions.some.params.alpha 0.0: ")


def test_one_binary_action_opens_and_closes_both_fingers() -> None:
    env = make(4, actions={"grip": BLOCKS["binary"]})
    assert env.action_names == ["grip.open"]
    env.step(torch.tensor([[0.7], [-0.1], [0.0], [-5.0]]))
    opened, closed = [0.04, 0.04], [0.0, 0.01]
    np.testing.assert_allclose(ctrl_of(env, "left", "right"), [opened, closed, opened, closed], rtol=1e-6)
    unnamed = action(actions.Binary, ("left", "right"), opened={"left": 1.0}, closed=0.0)
    assert refused(unnamed).startswith("--env.actions.some.params.opened left: has no number for")


@pytest.mark.slow
def test_limits_of_a_muscle_a_site_and_a_joint_and_activations_as_in_mujoco() -> None:
    env = make(3, actions={"some": BLOCKS["limits"]}, events={})
    given = torch.tensor([[-1.0, -1.0, -1.0], [0.5, 0.0, 1.0], [1.0, 1.0, 0.0]])
    names = ("muscle", "thrust", "left")
    ranges = np.array([[0.0, 1.0], [-2.0, 4.0], [0.0, 0.04]])
    expected = ranges[:, 0] + (float64(given) + 1) / 2 * (ranges[:, 1] - ranges[:, 0])
    copies = []
    for _ in range(3):
        copies.append(data := mujoco.MjData(env.sim.model))
        mujoco.mj_resetDataKeyframe(env.sim.model, data, 0)
    for _ in range(10):
        env.step(given)
        np.testing.assert_allclose(ctrl_of(env, *names), expected, rtol=0, atol=1e-6)
        for data, row in zip(copies, expected, strict=True):
            data.ctrl[[env.sim.model.actuator(name).id for name in names]] = row
            for _ in range(env.cfg.sim.decimation):
                mujoco.mj_step(env.sim.model, data)
    np.testing.assert_allclose(env.sim.view("act"), [data.act for data in copies], rtol=0, atol=1e-5)
    np.testing.assert_allclose(env.sim.qpos, [data.qpos for data in copies], rtol=0, atol=1e-4)
    activations = env.sim.view("act")[:, 0].tolist()
    assert activations[0] == pytest.approx(0.0)
    assert activations[0] < activations[1] < activations[2]
    message = refused(action(actions.ToLimits, ("cord",)))
    assert message.startswith("--env.actions.some.actuators cord: has no ctrlrange")


@pytest.mark.parametrize("actuator", ["muscle", "cord", "thrust"])
def test_muscles_tendons_and_sites_take_a_number_as_offset(actuator: str) -> None:
    env = make(2, actions={"some": ActionConfig(actuators=(actuator,), scale=0.5, offset=0.25)})
    env.step(torch.tensor([[1.0], [-0.5]]))
    np.testing.assert_allclose(ctrl_of(env, actuator), [[0.75], [0.0]], rtol=0, atol=1e-7)
    message = refused(ActionConfig(actuators=(actuator,), offset="home"))
    assert message.startswith(f"--env.actions.some.offset home: actuator {actuator} ")


# Inverse kinematics


def kinematics_of(env: Env, i: int, *, site: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return position, rotation matrix and Jacobian of the tip or the hand in an env, computed by MuJoCo's C code."""
    model, data = env.sim.model, mujoco.MjData(env.sim.model)
    data.qpos = float64(env.sim.qpos[i])
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    jacobian = np.zeros((6, model.nv))
    if site:
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], model.site("tip").id)
        return data.site("tip").xpos, data.site("tip").xmat.reshape(3, 3), jacobian[:, :6]
    mujoco.mj_jacBody(model, data, jacobian[:3], jacobian[3:], model.body("hand").id)
    return data.body("hand").xpos, data.body("hand").xmat.reshape(3, 3), jacobian[:, :6]


def rotation_vector(matrix: np.ndarray) -> np.ndarray:
    """Return the rotation vector of a rotation matrix, computed by MuJoCo's C code."""
    quat, vector = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quat, matrix.flatten())
    mujoco.mju_quat2Vel(vector, quat, 1.0)
    return vector


def matrix_of(vector: np.ndarray) -> np.ndarray:
    """Return the rotation matrix of a rotation vector, computed by MuJoCo's C code."""
    quat, matrix = np.zeros(4), np.zeros(9)
    angle = float(np.linalg.norm(vector))
    mujoco.mju_axisAngle2Quat(quat, vector / angle, angle)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)


@pytest.mark.parametrize("mode", ["relative", "absolute"])
@pytest.mark.parametrize("rotation", [True, False])
@pytest.mark.parametrize("at_site", [True, False])
def test_inverse_kinematics_solve_the_damped_least_squares_of_mujocos_jacobian(
    mode: Any, rotation: bool, at_site: bool
) -> None:
    frame: dict[str, Any] = {"site": "tip"} if at_site else {"body": "hand"}
    damping, width = 0.2, 6 if rotation else 3
    block = action(DifferentialIK, ARM, mode=mode, rotation=rotation, damping=damping, **frame)
    env = scattered(actions={"some": block})
    # The first step below resets every second env. After it, the simulation still has their poses from before the reset
    end_episodes(env, torch.arange(NUM_ENVS) % 2 == 0)
    env.step(0.1 * drawn(env, 8))
    given, before = drawn(env, 9), float64(env.sim.qpos[:, :6])
    expected = []
    for i in range(NUM_ENVS):
        position, matrix, jacobian = kinematics_of(env, i, site=at_site)
        error = float64(given[i])
        if mode == "absolute":
            error[:3] -= position
        if mode == "absolute" and rotation:
            error[3:] = rotation_vector(matrix_of(error[3:]) @ matrix.T)
        rows = jacobian[:width]
        expected.append(before[i] + rows.T @ np.linalg.solve(rows @ rows.T + damping**2 * np.eye(width), error))
    env._actions.apply(given)
    term = block_of(env, "some")
    assert isinstance(term, DifferentialIK)
    for i in range(NUM_ENVS):
        np.testing.assert_allclose(term._jacobian[i, :, :6], kinematics_of(env, i, site=at_site)[2], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ctrl_of(env, *(f"a{i}" for i in range(1, 7))), expected, rtol=0, atol=2e-4)


PLANAR = """<mujoco>
  <option gravity="0 0 0" timestep=".002" integrator="implicitfast"/>
  <worldbody><body>
    <joint name="shoulder" axis="0 0 1" damping="1"/><geom type="capsule" fromto="0 0 0 .5 0 0" size=".02"/>
    <body pos=".5 0 0">
      <joint name="elbow" axis="0 0 1" damping="1"/><geom type="capsule" fromto="0 0 0 .4 0 0" size=".02"/>
      <site name="tip" pos=".4 0 0"/>
    </body>
  </body></worldbody>
  <actuator>
    <position joint="shoulder" name="shoulder" kp="100"/><position joint="elbow" name="elbow" kp="100"/>
  </actuator>
  <keyframe><key name="bent" qpos=".2 .8"/></keyframe>
</mujoco>"""


def test_a_planar_arm_reaches_the_joint_angles_of_the_closed_form() -> None:
    sim = dataclasses.replace(SIM, model=PLANAR, decimation=10)
    block = action(DifferentialIK, (".*",), site="tip", mode="absolute", rotation=False, damping=0.02)
    env = make(3, actions={"arm": block}, sim=sim, events={}, episode_length_s=100.0)
    goals = torch.tensor([[0.5, 0.4, 0.0], [0.1, 0.7, 0.0], [0.7, 0.2, 0.0]])
    for _ in range(300):
        env.step(goals)
    x, y = float64(goals[:, 0]), float64(goals[:, 1])
    elbow = np.arccos((x**2 + y**2 - 0.5**2 - 0.4**2) / (2 * 0.5 * 0.4))
    shoulder = np.arctan2(y, x) - np.arctan2(0.4 * np.sin(elbow), 0.5 + 0.4 * np.cos(elbow))
    np.testing.assert_allclose(env.sim.qpos, np.stack([shoulder, elbow], axis=1), rtol=0, atol=2e-3)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"site": "nose"}, "--env.actions.some.params.site nose: there is no such site; the model has anchor, tip"),
        ({"site": "tip", "body": "hand"}, "--env.actions.some.params.site tip, "),
        ({"site": "tip", "damping": 0.0}, "--env.actions.some.params.damping 0.0: must be positive"),
        ({"site": "tip", "mode": "near"}, "--env.actions.some.params.mode near: takes relative, or absolute"),
    ],
)
def test_inverse_kinematics_that_cannot_be_solved_are_refused(params: dict[str, Any], expected: str) -> None:
    block = ActionConfig(func="mjlab_dist.mdp.actions:DifferentialIK", actuators=ARM, params=params)
    assert refused(block).startswith(expected)
