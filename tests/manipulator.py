"""The robot arm that tests of actions use, and configs of its envs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from legged import event, observe, reward

from mjlab_dist.config import ActionConfig, EnvConfig, SimConfig
from mjlab_dist.config.terms import action
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import actions, motors

DATA = Path(__file__).parent / "data"
ARM = ("a.",)
MOTOR_FILE = str(DATA / "motor.pt")
"""State dict of a network with six inputs, two layers of eight units with softsign, and one output."""
SIM = SimConfig(
    model=str(DATA / "models" / "manipulator.xml"),
    keyframe="bent",
    decimation=5,
    njmax=16,
    nconmax=4,
    forward_before_observation=False,
)
CONFIG = EnvConfig(
    sim=SIM,
    episode_length_s=0.3,
    actions={"arm": ActionConfig(actuators=ARM, scale=0.2, offset="home")},
    observations={"actor": {"joints": observe("JointPositions"), "action": observe("last_action")}},
    rewards={"alive": reward("alive")},
    events={"start": event("DrawJoints", position=(-0.2, 0.2), velocity=(-0.5, 0.5))},
)

BLOCKS: dict[str, ActionConfig] = {
    "plain": ActionConfig(actuators=ARM, scale={"a[1-3]": 0.2, "a.": 0.1}, offset="home"),
    "limits": action(actions.ToLimits, ("muscle", "thrust", "left")),
    "relative": action(actions.RelativeJointPosition, ARM).processed(scale=0.05),
    "smoothed": action(actions.Smoothed, ARM, alpha=0.3).processed(scale=0.3, offset="home", latency=(0, 2)),
    "binary": action(actions.Binary, ("left", "right"), opened=0.04, closed={"left": 0.0, "right": 0.01}),
    "ik": action(actions.DifferentialIK, ARM, site="tip").processed(scale={"[xyz]": 0.03, "r.": 0.1}),
    "pose": action(actions.DifferentialIK, ARM, body="hand", mode="absolute", rotation=False).processed(
        scale=0.1, offset={"x": 0.6, "y": 0.3, "z": 0.4}, clip=(-1.0, 1.0)
    ),
    "dc": action(
        motors.DcMotor, ("lever",), stiffness=20.0, damping=0.5, effort_limit=3.0, velocity_limit=8.0, delay=(2, 9)
    ).processed(scale=0.5, offset="home"),
    "learned": action(
        motors.LearnedMotor, ("lever",), file=MOTOR_FILE, activation="softsign", history=(0, 3, 5), effort_scale=10.0
    ),
}
"""One action block of every class."""


def make(num_envs: int, seed: int = 0, **changes: Any) -> Env:
    """Build envs of the arm from :data:`CONFIG` with changed fields."""
    torch.manual_seed(seed)
    return Env(dataclasses.replace(CONFIG, **changes), num_envs, "cpu")


def refused(**changes: Any) -> str:
    """Return the error message for envs with these changed fields, in one line."""
    with pytest.raises(UserError) as caught:
        make(2, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def drawn(env: Env, seed: int) -> torch.Tensor:
    """Return random actions."""
    return torch.randn(env.num_envs, env.num_actions, generator=torch.Generator().manual_seed(seed))
