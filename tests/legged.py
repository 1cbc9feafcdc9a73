"""The legged robot of the tests: configs of its envs, and the same simulation in MuJoCo's C library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.authoring.check.step_replay import Recorder
from mjlab_dist.config import (
    ActionConfig,
    ContactConfig,
    EnvConfig,
    EventConfig,
    MetricConfig,
    ObservationConfig,
    ParamValue,
    RandomizationConfig,
    Reduction,
    RewardConfig,
    SimConfig,
    TermConfig,
    TerminationConfig,
)
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError

SIM = SimConfig(
    model=str(Path(__file__).parent / "data" / "models" / "legged.xml"),
    keyframe="home",
    decimation=2,
    njmax=44,
    nconmax=10,
    forward_before_observation=False,
)
DT_S = 0.01
FEET = ("FL", "FR", "RL", "RR")
HOME = torch.tensor([0.2, 0.2, -0.2, -0.2, 0.0])
"""Positions of the hinges at the start, in the order of the model: hips, then the tail."""

CONFIG = EnvConfig(
    sim=SIM,
    episode_length_s=1.0,
    actions={"legs": ActionConfig(actuators=(".*_leg",), scale=0.5, offset="home")},
    observations={"actor": {"joints": ObservationConfig(func="mjlab_dist.mdp.observations:JointPositions")}},
    rewards={"alive": RewardConfig(func="mjlab_dist.mdp.rewards:alive", weight=1.0)},
)

MDP = "mjlab_dist.mdp"


def observe(func: str, params: dict[str, ParamValue] | None = None, **fields: Any) -> ObservationConfig:
    """Return the config of an observation of the package."""
    return ObservationConfig(func=f"{MDP}.observations:{func}", params=params or {}, **fields)


def reward(func: str, weight: float = 1.0, **params: ParamValue) -> RewardConfig:
    """Return the config of a reward of the package."""
    return RewardConfig(func=f"{MDP}.rewards:{func}", weight=weight, params=params)


def termination(func: str, **params: ParamValue) -> TerminationConfig:
    """Return the config of a termination of the package. `func` is module:name."""
    return TerminationConfig(func=f"{MDP}.{func}", params=params)


def metric(func: str, reduce: Reduction, **params: ParamValue) -> MetricConfig:
    """Return the config of a metric of the package. `func` is module:name."""
    return MetricConfig(func=f"{MDP}.{func}", reduce=reduce, params=params)


def term(func: str, **params: ParamValue) -> TermConfig:
    """Return the config of a term of the package. `func` is module:name."""
    return TermConfig(func=f"{MDP}.{func}", params=params)


def event(
    func: str, when: Any = "reset", interval_s: tuple[float, float] = (5.0, 10.0), **params: ParamValue
) -> EventConfig:
    """Return the config of an event of the package."""
    return EventConfig(func=f"{MDP}.events:{func}", params=params, when=when, interval_s=interval_s)


EVERYTHING = EnvConfig(
    sim=dataclasses.replace(SIM, contacts={"trunk": ContactConfig(kind="geom", names=("trunk",))}),
    episode_length_s=0.25,
    actions={
        "front": ActionConfig(
            actuators=("F._leg",), scale=0.5, offset="home", clip=(-2.0, 2.0), latency=(0, 2), latency_jitter=0.2
        ),
        "rear": ActionConfig(actuators=("R._leg",), scale=0.5, offset="home", latency=(1, 1)),
        "tail": ActionConfig(actuators=("tail",), scale=0.1),
    },
    observations={
        "actor": {
            "joints": observe("JointPositions", uniform_noise=0.01, history=3),
            "velocities": observe("JointVelocities", gaussian_noise=0.1, scale=0.1, clip=(-50.0, 50.0), delay=(0, 2)),
            "gravity": observe("projected_gravity", delay=(1, 1), history=2),
            "angular": observe("base_angular_velocity", uniform_noise=0.1),
            "action": observe("last_action"),
            "command": observe("command", {"name": "velocity"}),
        },
        "critic": {
            "linear": observe("base_linear_velocity"),
            "height": observe("base_height"),
            "position": observe("joint_position", {"joint": "root"}),
            "tail": observe("joint_velocity", {"joint": "tail"}),
            "gyro": observe("sensor", {"name": "gyro"}),
            "touch": observe("in_contact", {"sensor": "feet"}),
            "force": observe("contact_force", {"sensor": "feet"}, scale=0.01),
            "air": observe("air_time", {"sensor": "feet"}),
            "goal": observe("command", {"name": "goal"}),
            "mass": observe("model_field", {"field": "body_mass"}),
            "friction": observe("model_field", {"field": "geom_friction"}),
        },
    },
    rewards={
        "alive": reward("alive"),
        "terminated": reward("terminated", -10.0),
        "linear": reward("track_linear_velocity", command="velocity"),
        "heading": reward("track_heading_velocity", command="velocity"),
        "yaw": reward("track_yaw_rate", command="velocity"),
        "vertical": reward("vertical_velocity", -0.1),
        "tilt_rate": reward("tilt_rate", -0.1),
        "tilt": reward("tilt", -0.1),
        "height": reward("height_error", -1.0, target_m=0.27),
        "rate": reward("action_rate", -0.01),
        "size": reward("action_size", -0.01),
        "force": reward("actuator_force", -1e-4),
        "acceleration": reward("JointAcceleration", -1e-6),
        "velocity": reward("JointVelocity", -1e-3),
        "deviation": reward("JointDeviation", -0.1),
        "limits": reward("JointLimits", -1.0),
        "air": reward("feet_air_time", sensor="feet", command="velocity", min_s=0.05),
        "contacts": reward("contacts", 0.1, sensor="feet"),
        "slip": reward("FootSlip", -0.1, sensor="feet", velocities=tuple(f"{foot}_velocity" for foot in FEET)),
        "still": reward("stand_still", -0.1, command="velocity"),
    },
    terminations={
        "tilted": termination("terminations:tilted", max_rad=0.6),
        "low": termination("terminations:too_low", min_m=0.15),
        "far": termination("terminations:out_of_bounds", max_m=1.5),
        "fallen": termination("terminations:illegal_contact", sensor="trunk", min_n=1.0),
        "nan": termination("terminations:not_finite"),
    },
    metrics={
        "height": metric("rewards:height_error", "last", target_m=0.27),
        "force": metric("rewards:actuator_force", "max"),
        "alive": metric("rewards:alive", "sum"),
        "tilt": metric("rewards:tilt", "min"),
        "tilted": metric("terminations:tilted", "mean", max_rad=0.3),
    },
    events={
        "root": event(
            "DrawRoot",
            x_m=(-0.5, 0.5),
            y_m=(-0.5, 0.5),
            yaw_rad=(-3.0, 3.0),
            roll_rad=(-0.3, 0.3),
            linear_m_s=(-1.0, 1.0),
        ),
        "joints": event("DrawJoints", position=(-0.3, 0.3), velocity=(-1.0, 1.0)),
        "some": event("DrawJoints", joints=("FL_hip", "RR_hip"), position=(-0.1, 0.1)),
        "tail": event("draw_joint_position", joint="tail", low=-3.0, high=3.0),
        "push": event("Push", "interval", (0.03, 0.1), linear_m_s=(-0.5, 0.5), angular_rad_s=(-0.5, 0.5)),
        "shake": event("draw_velocities", "interval", (0.1, 0.2), std=0.1),
    },
    randomizations={
        "mass": RandomizationConfig(field="body_mass", names=("trunk",), low=0.8, high=1.2),
        "gravity": RandomizationConfig(field="gravity", low=-0.1, high=0.1, operation="add"),
        "friction": RandomizationConfig(
            field="geom_friction", columns=(0,), low=0.5, high=1.2, operation="set", shared=True, when="reset"
        ),
        "damping": RandomizationConfig(
            field="dof_damping", names=(".*_hip",), low=0.5, high=2.0, distribution="log-uniform", when="reset"
        ),
    },
    commands={
        "velocity": term(
            "commands:Velocity",
            forward_m_s=(-1.0, 1.0),
            left_m_s=(-0.5, 0.5),
            yaw_rad_s=(-1.0, 1.0),
            resample_s=(0.05, 0.15),
            standing_share=0.2,
            heading_share=0.5,
        ),
        "goal": term("commands:Pose", x_m=(-1.0, 1.0), y_m=(-1.0, 1.0), z_m=(0.2, 0.4), yaw_rad=(-3.0, 3.0)),
    },
    sensors={
        "feet": term("sensors:Contact", sensors=(".._touch",)),
        "trunk": term("sensors:Contact", contacts="trunk", history=2),
    },
)
"""Config with every kind of term. Most episodes end with a fall, or after 25 steps."""


def make(num_envs: int, seed: int = 0, config: EnvConfig = CONFIG, **changes: Any) -> Env:
    """Build envs of the robot from :data:`CONFIG` with changed fields."""
    torch.manual_seed(seed)
    return Env(dataclasses.replace(config, **changes), num_envs, "cpu")


def refused(config: EnvConfig = CONFIG, **changes: Any) -> str:
    """Return the error message for envs with these changed fields, in one line."""
    config = dataclasses.replace(config, **changes)
    # Without capture, physics is faster to build. Terms are checked in the same way with and without it
    sim = dataclasses.replace(config.sim, capture="off")
    with pytest.raises(UserError) as caught:
        make(2, config=config, sim=sim)
    message = str(caught.value)
    assert "\n" not in message
    return message


def end_episodes(env: Env, mask: torch.Tensor) -> None:
    """Let some envs reach their time limit in the next step."""
    env.episode_length_buf[mask] = env.max_episode_length


def randomize_state(env: Env, seed: int = 1) -> None:
    """Put every env into a different state: in the air or on the floor, rotated, moving."""
    rng = np.random.default_rng(seed)
    n = env.num_envs
    quat = rng.normal(size=(n, 4))
    quat /= np.linalg.norm(quat, axis=1, keepdims=True)
    position = rng.uniform([-1, -1, 0.2], [1, 1, 1], size=(n, 3))
    hinges = rng.uniform(-0.95, 0.95, size=(n, 5))
    env.sim.qpos.copy_(torch.from_numpy(np.concatenate([position, quat, hinges], axis=1)))
    env.sim.qvel.copy_(torch.from_numpy(rng.normal(size=(n, 11))))


def assert_uniform(values: np.ndarray, low: float, high: float) -> None:
    """Check that values are uniform: their Kolmogorov-Smirnov distance must be below 2 / sqrt(n).

    For uniform values, the distance exceeds this limit with a probability of 1 in 1,500.
    """
    ordered = np.sort(values)
    slack = 1e-5 * max(abs(low), abs(high))  # rounding of float32
    assert low - slack <= ordered[0] <= ordered[-1] <= high + slack
    distance = np.abs((ordered - low) / (high - low) - np.arange(len(values)) / len(values)).max()
    assert distance < 2 / np.sqrt(len(values))


def assert_independent(*columns: np.ndarray) -> None:
    """Check that columns are independent, by the correlation of each pair."""
    table = np.stack(columns)
    assert np.abs(np.corrcoef(table) - np.eye(len(table))).max() < 5 / np.sqrt(table.shape[1])


def float64(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as a float64 array, for MuJoCo's C library."""
    return tensor.double().numpy().copy()


def c_copies(env: Env) -> list[mujoco.MjData]:
    """Return data of MuJoCo's C library with the current state of each env."""
    copies = []
    for i in range(env.num_envs):
        data = mujoco.MjData(env.sim.model)
        data.qpos, data.qvel, data.ctrl = float64(env.sim.qpos[i]), float64(env.sim.qvel[i]), float64(env.sim.ctrl[i])
        data.qacc_warmstart = float64(env.sim.view("qacc_warmstart")[i])
        copies.append(data)
    return copies


def c_step(env: Env, copies: list[mujoco.MjData], ctrl: np.ndarray) -> None:
    """Run a control step with copies of the envs in MuJoCo's C library.

    Afterwards, sensors have their values from the start of the last substep, as in the env.
    """
    for data, row in zip(copies, ctrl, strict=True):
        data.ctrl = row
        for _ in range(env.cfg.sim.decimation):
            mujoco.mj_step(env.sim.model, data)


def step(env: Env, num_steps: int = 1) -> None:
    """Run control steps with actions of 0."""
    for _ in range(num_steps):
        env.step(torch.zeros(env.num_envs, env.num_actions))


def swinging_legs(now: int, num_envs: int) -> torch.Tensor:
    """Return actions that swing the legs up and down, with a different phase for each env and leg."""
    phase = torch.arange(num_envs).unsqueeze(1) + 1.5 * torch.arange(4)
    return 1.4 * torch.sin(now / (6.0 + 0.5 * torch.arange(num_envs).unsqueeze(1)) + phase).clamp_min(0.0)


def assert_resumes(build: Callable[[int], Env], num_before: int = 10, num_after: int = 20) -> Env:
    """Check that envs which load a saved state repeat every bit of the steps after it. Return the envs that saved it.

    Args:
        build: Builds envs whose random numbers begin with a seed.
        num_before: Number of control steps before the state is saved.
        num_after: Number of control steps after it.
    """
    env, other = build(0), build(5)
    generator = torch.Generator().manual_seed(1)
    actions = torch.randn(num_before + num_after, env.num_envs, env.num_actions, generator=generator)
    for row in actions[:num_before]:
        env.step(row)
    random = torch.get_rng_state()
    other.step(actions[-1])
    other.load_state(env.state())
    for one in (env, other):
        torch.set_rng_state(random)
        for row in actions[num_before:]:
            one.step(row)
    end = other.state()
    assert [name for name, tensor in env.state().items() if not torch.equal(tensor, end[name])] == []
    return env


def assert_replays(env: Env, num_steps: int = 15) -> None:
    """Check that every step runs the same operations on the same memory."""
    recorder, actions = Recorder(env.sim, {}), torch.zeros(env.num_envs, env.num_actions)

    def take_step() -> dict[str, Any]:
        return {"actor": env.step(actions)[0]["actor"]}

    with torch.inference_mode():
        obs = take_step()
        for _ in range(num_steps):
            obs = recorder.record(take_step, obs, 0)
