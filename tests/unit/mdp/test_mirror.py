"""Mirror images of a robot are found in its start state; physics itself is the oracle (check_mirror)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from mjlab_dist.authoring.check.mirror_check import check_mirror
from mjlab_dist.config import (
    ActionConfig,
    ContactConfig,
    EnvConfig,
    ObservationConfig,
    SimConfig,
    observation,
    reward,
    term,
)
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import commands, height_scan, observations, rewards, sensors
from mjlab_dist.mdp.mirror import VECTOR, WithMirrored, mirrored


def robot(left_axis: str = "0 0 -1", right_rear_m: float = -0.1) -> str:
    """Return the MJCF of a robot with four legs that turn and slide. Names do not tell left from right.

    The axis of the left front hip points the other way than those of the other hips.
    """
    legs = "".join(
        f"""<body pos="{x} {y} 0"><joint name="hip_{i}" axis="{axis}" range="-1 1" damping=".1"/>
          <geom type="capsule" fromto="0 0 0 0 {y} 0" size=".02" mass=".3"/>
          <body pos="0 {y} 0"><joint name="slide_{i}" type="slide" axis="0 {side} 1" range="-.1 .1" damping="1"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".02" mass=".2"/>
            <geom name="foot_{i}" type="sphere" pos="0 0 -.2" size=".03" mass=".05"/>
          </body>
        </body>"""
        for i, (x, y, axis, side) in enumerate(
            [
                (-0.2, right_rear_m, "0 0 1", -1),
                (0.2, 0.1, left_axis, 1),
                (-0.2, 0.1, "0 0 1", 1),
                (0.2, -0.1, "0 0 1", -1),
            ]
        )
    )
    motors = "".join(
        f'<position name="{kind}_{i}" joint="{kind}_{i}" kp="{kp}"/>'
        for i in (2, 0, 1, 3)
        for kind, kp in (("hip", 20), ("slide", 400))
    )
    return f"""<mujoco><compiler angle="radian" autolimits="true"/><option timestep="0.005"/>
      <worldbody><geom name="floor" type="plane" size="0 0 1"/>
        <body name="base" pos="0 0 .24"><freejoint/><geom type="box" size=".2 .1 .03" mass="4"/>{legs}</body>
      </worldbody><actuator>{motors}</actuator></mujoco>"""


FEET = ("foot_.*",)

TERMS = {
    "gravity": observation(observations.projected_gravity),
    "velocity": observation(observations.base_linear_velocity),
    "turning": observation(observations.base_angular_velocity),
    "height": observation(observations.base_height),
    "command": observation(observations.command, name="velocity"),
    "clock": observation(observations.gait_clock, sensor="gait"),
    "positions": observation(observations.JointPositions),
    "angles": observation(observations.JointAngles, joints=("hip_.*",)),
    "velocities": observation(observations.JointVelocities, joints=("slide_.*", "hip_1", "hip_3")),
    "contact": observation(observations.in_contact, sensor="feet"),
    "air": observation(observations.air_time, sensor="feet"),
    "ground": observation(height_scan.HeightScan, size_m=(0.4, 0.2), spacing_m=0.1),
    "last_action": observation(observations.last_action),
}


def config(tmp_path: Path, xml: str, **changes: Any) -> EnvConfig:
    (tmp_path / "robot.xml").write_text(xml)
    walk = EnvConfig(
        sim=SimConfig(
            model=str(tmp_path / "robot.xml"),
            engine="warp",
            decimation=4,
            njmax=120,
            nconmax=30,
            contacts={"feet": ContactConfig(names=FEET, kind="geom")},
        ),
        episode_length_s=10.0,
        actions={
            "hips": ActionConfig(actuators=("hip_.*",), scale=0.5, offset="home"),
            "slides": ActionConfig(actuators=("slide_.*",), scale=0.05),
        },
        observations={"actor": TERMS},
        rewards={
            "track": reward(1.0, rewards.track_linear_velocity, command="velocity"),
            "gait": reward(1.0, rewards.scheduled_contacts, gait="gait", contacts="feet"),
        },
        commands={
            "velocity": term(commands.Velocity, forward_m_s=(-1.0, 1.0), left_m_s=(0.2, 1.0), yaw_rad_s=(0.2, 1.0))
        },
        sensors={
            "gait": term(sensors.Gait, feet=FEET, offsets=(0.0, 0.0, 0.5, 0.5), frequency_hz=2.5, command="velocity"),
            "feet": term(sensors.Contact, contacts="feet"),
        },
    )
    return dataclasses.replace(walk, **changes)


@pytest.mark.parametrize(
    ("offsets", "frequency_hz"),
    [((0.0, 0.0, 0.5, 0.5), 2.5), ((0.0, 0.5, 0.0, 0.5), 2.5), ((0.0, 0.0, 0.5, 0.5), 1.5)],
    ids=["trot", "bound", "half a period is not a whole number of steps"],
)
def test_mirrored_robots_have_mirrored_observations(
    tmp_path: Path, offsets: tuple[float, ...], frequency_hz: float
) -> None:
    found = config(tmp_path, robot())
    params = {**found.sensors["gait"].params, "offsets": offsets, "frequency_hz": frequency_hz}
    gait = dataclasses.replace(found.sensors["gait"], params=params)
    result = check_mirror(dataclasses.replace(found, sensors={**found.sensors, "gait": gait}))
    assert result.passed, result.text
    assert f"{len(TERMS) + 2} terms" in result.text


@mirrored(VECTOR)
def turning_wrongly_mirrored(env: Env) -> torch.Tensor:
    return observations.base_angular_velocity(env)


def lopsided(env: Env) -> torch.Tensor:
    """Return the velocity to the left."""
    return observations.base_linear_velocity(env)[:, 1]


def test_a_wrong_image_and_a_lopsided_reward_are_named(tmp_path: Path) -> None:
    found = config(
        tmp_path,
        robot(),
        observations={"actor": {**TERMS, "wrong": observation(turning_wrongly_mirrored)}},
        rewards={"alive": reward(1.0, rewards.alive), "left": reward(1.0, lopsided)},
    )
    result = check_mirror(found)
    assert not result.passed
    assert result.text.startswith("observations.actor.wrong and rewards.left ")


def test_a_row_is_followed_by_its_image(tmp_path: Path) -> None:
    env = Env(config(tmp_path, robot()), 1, "cpu")
    actions = torch.arange(1.0, 9.0).unsqueeze(0)
    _, both = WithMirrored(env)(env, None, actions)
    assert both is not None
    # hips 2, 0, 1, 3, then slides; a hip's axis is mirrored by its sign, but that of hip 1 is so already
    assert both.tolist() == [actions[0].tolist(), [-2.0, -1.0, 4.0, 3.0, 6.0, 5.0, 8.0, 7.0]]


OWN = {"actor": {"own": observation(observations.joint_position, joint="hip_1")}}

GAIT = term(sensors.Gait, feet=FEET, offsets=(0.0, 0.25, 0.6, 0.75), frequency_hz=2.5, command="velocity")


@pytest.mark.parametrize(
    ("xml", "changes", "part"),
    [
        (robot(right_rear_m=-0.15), {}, "joint hip_2"),
        (robot(left_axis="0 1 1"), {}, "joint hip_1"),
        (robot(), {"observations": OWN}, "--env.observations.actor.own.func "),
        (robot(), {"sensors": {"gait": GAIT, "feet": term(sensors.Contact, contacts="feet")}}, "another gait"),
        (robot(), {"actions": {"hips": ActionConfig(actuators=("hip_.*",), scale={"hip_0": 1.0, ".*": 0.5})}}, "hip_2"),
        (robot(), {"actions": {"hips": ActionConfig(actuators=("hip_[01]",))}}, "joint hip_0"),
    ],
    ids=["place", "axis", "observation", "gait", "scale", "half of the joints"],
)
def test_what_has_no_mirror_image_is_refused(tmp_path: Path, xml: str, changes: dict[str, Any], part: str) -> None:
    found = config(tmp_path, xml, **changes)
    with pytest.raises(UserError, match=part):
        WithMirrored(Env(found, 2, "cpu"))
    assert not check_mirror(found).passed


def test_each_step_of_a_history_is_mirrored(tmp_path: Path) -> None:
    gravity: ObservationConfig = dataclasses.replace(TERMS["gravity"], history=2)
    env = Env(config(tmp_path, robot(), observations={"actor": {"gravity": gravity}}), 2, "cpu")
    obs = env.get_observations()
    both, _ = WithMirrored(env)(env, obs, None)
    assert both is not None
    torch.testing.assert_close(both["actor"][2:], obs["actor"] * torch.tensor([1.0, -1.0, 1.0] * 2))
