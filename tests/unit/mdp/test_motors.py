"""Motors that compute torques in every physics step. MuJoCo's C code, its dcmotor and torch give expected values."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import end_episodes, float64
from manipulator import MOTOR_FILE, SIM, drawn, make, refused

from mjlab_dist.config import ActionConfig, ActuatorConfig, OptionsConfig
from mjlab_dist.config.terms import action
from mjlab_dist.env import Env
from mjlab_dist.mdp.motors import DcMotor, LearnedMotor

NUM_ENVS = 8
JOINTS = ("j1", "j2", "j3", "j4", "j5", "j6")
TORQUES = dataclasses.replace(
    SIM,
    actuators={"arm": ActuatorConfig(joints=("j.",), kind="effort")},
    options=OptionsConfig(integrator="euler"),
)
"""The arm with torque motors.

With the Euler integrator, torques are constant in a physics step, whether a term or an actuator computes them.
"""
POSITION_MOTOR = action(DcMotor, ("a1",), stiffness=1.0, damping=0.0)
LIMITS: dict[str, Any] = {"stiffness": 60.0, "damping": 1.5, "effort_limit": 12.0, "velocity_limit": 6.0}


def arm(func: Any = DcMotor, **params: Any) -> dict[str, ActionConfig]:
    return {"arm": action(func, JOINTS, **params).processed(scale=0.8, offset="home")}


def columns(env: Env) -> list[int]:
    return [env.sim.model.actuator(name).id for name in JOINTS]


def test_a_dc_motor_produces_the_torques_of_mujocos_dcmotor() -> None:
    theirs_sim = dataclasses.replace(TORQUES, actuators={"arm": ActuatorConfig(joints=("j.",), **LIMITS)}, decimation=1)
    ours = make(NUM_ENVS, actions=arm(**LIMITS), sim=dataclasses.replace(TORQUES, decimation=1))
    theirs = make(NUM_ENVS, actions={"arm": ActionConfig(actuators=JOINTS, scale=0.8, offset="home")}, sim=theirs_sim)
    limited = 0
    for seed in range(30):
        # Speeds below and above the no-load speed
        speeds = 4.0 * torch.randn(ours.sim.qvel.shape, generator=torch.Generator().manual_seed(100 + seed))
        positions = ours.sim.qpos.clone()
        for env in (ours, theirs):
            env.sim.qpos.copy_(positions)
            env.sim.qvel.copy_(speeds)
            env.step(drawn(env, seed))
        torque = float64(ours.sim.ctrl[:, columns(ours)])
        np.testing.assert_allclose(
            torque, float64(theirs.sim.view("actuator_force")[:, columns(theirs)]), rtol=1e-4, atol=1e-4
        )
        np.testing.assert_allclose(ours.sim.qvel, theirs.sim.qvel, rtol=1e-3, atol=1e-3)
        limited += int((np.abs(torque) > 11.99).sum())
    assert 0 < limited < 30 * NUM_ENVS * 6


def c_run(env: Env, given: Sequence[torch.Tensor], torque: Callable[[int, int, np.ndarray, mujoco.MjData], np.ndarray]):
    """Step the env and MuJoCo's C code, and compare positions.

    Before each physics step of the C code, `torque` computes the torques from the control step, the index of the env,
    the target positions and the data.
    """
    copies = []
    for i in range(env.num_envs):
        copies.append(data := mujoco.MjData(env.sim.model))
        data.qpos, data.qvel = float64(env.sim.qpos[i]), float64(env.sim.qvel[i])
    home, ids = float64(env.reference.qpos[0, :6]), columns(env)
    for now, actions in enumerate(given):
        env.step(actions)
        for i, data in enumerate(copies):
            target = home + 0.8 * float64(actions[i])
            for _ in range(env.cfg.sim.decimation):
                data.ctrl[ids] = torque(now, i, target, data)
                mujoco.mj_step(env.sim.model, data)
        np.testing.assert_allclose(env.sim.qpos[:, :6], [data.qpos[:6] for data in copies], rtol=0, atol=5e-4)


def test_targets_arrive_late_by_a_number_of_physics_steps() -> None:
    env = make(4, actions=arm(stiffness={"j[12]": 60.0, ".*": 20.0}, damping=1.0, delay=(7, 7)), sim=TORQUES)
    stiffness, home = np.array([60.0, 60.0, 20.0, 20.0, 20.0, 20.0]), float64(env.reference.qpos[0, :6])
    lines = [[home] * 8 for _ in range(4)]

    def torque(now: int, i: int, target: np.ndarray, data: mujoco.MjData) -> np.ndarray:  # noqa: ARG001
        lines[i] = [target, *lines[i][:7]]
        return stiffness * (lines[i][7] - data.qpos[:6]) - 1.0 * data.qvel[:6]

    c_run(env, [drawn(env, seed) for seed in range(15)], torque)


def test_each_env_samples_its_delay_for_each_episode() -> None:
    env = make(400, actions=arm(**LIMITS, delay=(2, 5)), sim=TORQUES)
    lag = env.state()["actions.arm.lag"]
    shares = torch.bincount(lag, minlength=6) / 400
    assert shares.tolist() == pytest.approx([0, 0, 0.25, 0.25, 0.25, 0.25], abs=0.09)
    ends = torch.arange(400) % 2 == 0
    end_episodes(env, ends)
    env.step(drawn(env, 0))
    after = env.state()["actions.arm.lag"]
    assert torch.equal(after[~ends], lag[~ends])
    assert 0.6 < (after[ends] != lag[ends]).float().mean() < 0.9
    assert not env.state()["actions.arm.targets"][ends].any()


def motor_network() -> torch.nn.Sequential:
    """Return a network whose inputs are three position errors and three velocities."""
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ELU(), torch.nn.Linear(8, 1))


def stored_network() -> torch.nn.Sequential:
    """Return the network of MOTOR_FILE."""
    soft = torch.nn.Softsign()
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), soft, torch.nn.Linear(8, 8), soft, torch.nn.Linear(8, 1))
    network.load_state_dict(torch.load(MOTOR_FILE, weights_only=True))
    return network


@pytest.mark.parametrize("kind", ["state", "package"])
@pytest.mark.parametrize("velocities_first", [False, True])
def test_a_learned_motor_evaluates_the_network_in_every_physics_step(
    tmp_path: Path, kind: str, velocities_first: bool
) -> None:
    torch.manual_seed(0)
    network = motor_network()
    file, activation = str(tmp_path / "motor.pt"), "elu"
    if kind == "state":
        torch.save(network.state_dict(), file)
    else:
        file, activation, network = MOTOR_FILE, "softsign", stored_network()
    network = network.double()
    history, scales = (0, 2, 5), {"position_scale": 2.0, "velocity_scale": 0.3, "effort_scale": 15.0}
    given: dict[str, Any] = {"file": file, "activation": activation, "history": history, "effort_limit": 1.5, **scales}
    env = make(3, actions=arm(LearnedMotor, velocities_first=velocities_first, **given), sim=TORQUES)
    errors, velocities = ([[np.zeros(6)] * 6 for _ in range(3)] for _ in range(2))
    torques: list[np.ndarray] = []

    def torque(now: int, i: int, target: np.ndarray, data: mujoco.MjData) -> np.ndarray:  # noqa: ARG001
        errors[i] = [target - data.qpos[:6], *errors[i][:5]]
        velocities[i] = [data.qvel[:6].copy(), *velocities[i][:5]]
        parts = [[2.0 * errors[i][age] for age in history], [0.3 * velocities[i][age] for age in history]]
        rows = np.stack([*parts[velocities_first], *parts[not velocities_first]], axis=1)
        with torch.no_grad():
            output = network(torch.from_numpy(rows)).squeeze(1).numpy()
        torques.append(np.clip(15.0 * output, -1.5, 1.5))
        return torques[-1]

    c_run(env, [drawn(env, seed) for seed in range(10)], torque)
    assert 0 < (np.abs(np.stack(torques)) == 1.5).mean() < 1


TENDON = {
    "cord": action(
        LearnedMotor, ("cord",), file=MOTOR_FILE, activation="softsign", history=(0, 1, 3), effort_scale=10.0
    ).processed(offset=0.2, scale=0.1)
}
FORWARD = dataclasses.replace(SIM, forward_before_observation=True)


def test_a_learned_motor_pulls_a_tendon_by_its_length() -> None:
    network = stored_network().double()
    env = make(1, actions=TENDON, sim=FORWARD)
    model = env.sim.model
    data = mujoco.MjData(model)
    data.qpos, data.qvel = float64(env.sim.qpos[0]), float64(env.sim.qvel[0])
    mujoco.mj_forward(model, data)
    cord = model.actuator("cord").id
    errors, velocities = [0.0] * 4, [0.0] * 4
    for seed in range(8):
        given = drawn(env, seed)
        env.step(given)
        target = 0.2 + 0.1 * float(given[0, 0])
        for _ in range(env.cfg.sim.decimation):
            errors = [target - data.actuator_length[cord], *errors[:3]]
            velocities = [data.actuator_velocity[cord], *velocities[:3]]
            row = [line[age] for line in (errors, velocities) for age in (0, 1, 3)]
            with torch.no_grad():
                data.ctrl[cord] = 10.0 * network(torch.tensor(row, dtype=torch.float64)).item()
            mujoco.mj_step(model, data)
        assert env.sim.ctrl[0, cord].item() == pytest.approx(data.ctrl[cord], abs=1e-3)
        np.testing.assert_allclose(env.sim.qpos[0], data.qpos, rtol=0, atol=5e-4)


def test_a_tendon_starts_an_episode_with_its_own_length_and_resumes_exactly() -> None:
    fresh, used, other = (make(2, actions=TENDON, sim=FORWARD, events={}) for _ in range(3))
    for seed in range(6):
        used.step(drawn(used, seed))
    end_episodes(used, torch.tensor([False, True]))
    used.step(drawn(used, 6))
    for seed in range(7, 12):
        for env in (fresh, used):
            env.step(drawn(env, seed))
    assert torch.equal(used.sim.qpos[1], fresh.sim.qpos[1])
    other.load_state(used.state())
    for seed in range(12, 16):
        for env in (used, other):
            env.step(drawn(env, seed))
    assert torch.equal(used.sim.qpos, other.sim.qpos)
    assert "forward-before-observation" in refused(actions=TENDON)


class Writes(torch.nn.Module):
    """A module whose TorchScript writes the file that the module's attribute names."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 1)
        self.file = file

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + 0.0 * torch.from_file(self.file, True, 64).fill_(1.0).sum()


def test_no_file_of_a_network_is_executed(tmp_path: Path) -> None:
    file, target = str(tmp_path / "motor.pt"), tmp_path / "usercustomize.py"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Writes(str(target))).save(file)
        torch.jit.load(file)(torch.zeros(1, 6))
    assert target.stat().st_size == 256, "the file is a program"
    target.unlink()
    message = refused(actions=arm(LearnedMotor, file=file, activation="elu"), sim=TORQUES)
    assert message.startswith(f"--env.actions.arm.params.file {file}: is not a state dict; ")
    assert not target.exists()


@pytest.mark.slow
def test_networks_of_another_form_are_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "motor.pt")
    flag = "--env.actions.arm.params"

    def message(**params: Any) -> str:
        return refused(actions=arm(LearnedMotor, **{"file": file, "activation": "elu", **params}), sim=TORQUES)

    assert message().startswith(f"{flag}.file {file}: there is no file")
    Path(file).write_text("weights")
    assert message().startswith(f"{flag}.file {file}: is not a state dict")
    weight = torch.ones(1, 6)
    for state in ({"a": 1}, [weight], {"weight": weight.to_sparse()}, {"weight": weight.to("meta")}):
        torch.save(state, file)
        assert message().startswith(f"{flag}.file {file}: is not a state dict of numbers")
    torch.save(motor_network().state_dict(), file)
    assert message(history=(0, 1)).startswith(f"{flag}.file {file}: its tensors are 8x6 8 1x8 1; ")
    assert message(history=()).startswith(f"{flag}.history ")
    torch.save(torch.nn.Linear(6, 1, bias=False).state_dict(), file)
    assert message().startswith(f"{flag}.file {file}: its tensors are 1x6; ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sim": SIM, "actions": {"arm": POSITION_MOTOR}}, ".actuators a1: is not a torque motor"),
        ({"actions": arm(stiffness=-1.0, damping=0.0)}, ".params.stiffness -1.0: must be 0 or more"),
        ({"actions": arm(stiffness=1.0, damping=0.0, effort_limit=0.0)}, ".params.effort-limit 0.0: must be positive"),
        ({"actions": arm(stiffness=1.0, damping=0.0, velocity_limit=1.0)}, ".params.velocity-limit: needs"),
        ({"actions": arm(stiffness=1.0, damping=0.0, delay=(3, 1))}, ".params.delay 3 1: give the minimum first"),
        ({"actions": arm(stiffness={"k.": 1.0}, damping=0.0)}, ".params.stiffness k.: matches none"),
    ],
)
def test_motors_that_cannot_work_are_refused(changes: dict[str, Any], expected: str) -> None:
    assert refused(**{"sim": TORQUES, **changes}).startswith(f"--env.actions.arm{expected}")
