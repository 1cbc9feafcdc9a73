"""The check of the physics: explosions, overlaps, implausible speeds, and differences from MuJoCo's C code."""

from __future__ import annotations

import dataclasses
import re

import mujoco
import pytest
import torch

from mjlab_dist.authoring.check.physics_check import PhysicsProbe
from mjlab_dist.authoring.check.run_checks import try_out
from mjlab_dist.authoring.check.task_checks import Check
from mjlab_dist.authoring.check.watched_env import WatchedEnv
from mjlab_dist.config import ActionConfig, EnvConfig, SimConfig, TrainConfig, observation, reward
from mjlab_dist.mdp import observations, rewards
from mjlab_dist.messages import Event, listening
from mjlab_dist.sim import start_warp

PENDULUM = """
<mujoco>
  <option timestep="{timestep}" integrator="Euler"/>
  <worldbody>
    <body pos="0 0 {height}">
      <joint name="hinge" axis="0 1 0" damping="{damping}"/>
      <geom name="rod" type="capsule" fromto="0 0 0 {length} 0 0" size=".02"/>
    </body>
    <geom name="wall" type="box" size="1 1 1" pos="0 0 -1"/>
  </worldbody>
  <actuator><{motor} joint="hinge"/></actuator>
</mujoco>
"""


def config(motor: str, *, damping: float = 0.1, length: float = 0.3, height: float = 1.0) -> TrainConfig:
    model = PENDULUM.format(motor=motor, damping=damping, length=length, height=height, timestep=0.005)
    return TrainConfig(
        task="pendulum",
        num_envs=2,
        env=EnvConfig(
            sim=SimConfig(model=model, decimation=4, njmax=20, nconmax=20),
            episode_length_s=10.0,
            actions={"all": ActionConfig(actuators=(".*",))},
            observations={"actor": {"positions": observation(observations.JointPositions)}},
            rewards={"alive": reward(1.0, rewards.alive)},
        ),
    )


def physics(task: TrainConfig) -> Check:
    return next(check for check in try_out(task) if check.name == "physics")


@pytest.mark.slow
def test_a_plausible_motion_equals_that_of_the_c_code() -> None:
    result = physics(config("motor gear='.5'"))
    assert result.passed
    found = re.fullmatch(
        r"the fastest joint reaches ([\d.]+) rad/s; relative difference from MuJoCo's C code in the change of "
        r"velocities per step: (\S+)",
        result.text,
    )
    assert found is not None
    assert 1 < float(found[1]) < 50
    assert float(found[2]) < 1e-4


def test_gains_that_are_too_large_are_found_with_the_joint() -> None:
    result = physics(config("velocity kv='-1e5'"))
    assert not result.passed
    assert re.match(
        r"(too fast: |positions or velocities are not finite after .*: )joint hinge at [\d,]+ rad/s", result.text
    )
    assert "in MuJoCo's C code too" in result.text
    assert "armature" in result.text


def test_an_implausible_speed_is_a_warning() -> None:
    events: list[Event] = []
    with listening(events.append):
        result = physics(config("motor gear='100'", damping=0.1))
    assert result.passed
    (warning,) = [event["text"] for event in events if event["kind"] == "warning"]
    assert 300 < speed_of(warning, "unusually fast") < 1000


def test_a_speed_that_no_motor_reaches_is_an_error() -> None:
    result = physics(config("motor gear='400'", damping=0.1))
    assert not result.passed
    assert speed_of(result.text, "too fast") > 1000


def speed_of(text: str, start: str) -> int:
    """Return the speed in rad/s that a message names."""
    found = re.match(rf"{start}: joint hinge at ([\d,]+) rad/s", text)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_a_lasting_overlap_is_found_with_its_geoms() -> None:
    result = physics(config("motor gear='.1'", height=-1.0))
    assert not result.passed
    assert re.match(
        r"geom (rod and geom wall|wall and geom rod) overlap by [\d.]+ m in 25 consecutive steps", result.text
    )


@pytest.mark.slow  # compiles kernels for elliptic cones
def test_the_jitter_of_a_resting_object_is_no_difference_from_the_c_code() -> None:
    task = config("motor gear='.001'", damping=10.0, height=3.0)
    puck = """
        <body pos="0 0 .02"><freejoint/>
          <inertial pos="0 0 0" mass=".75" diaginertia="9e-4 9e-4 9e-4"/>
          <geom type="cylinder" size=".02 .02" solimp=".99 .99 .01" solref=".01 1" friction="1 .1 .002" condim="4"/>
        </body>"""
    option = '<option timestep="0.0025" cone="elliptic" iterations="50" tolerance="1e-10" gravity="0 0 -9.81"/>'
    model = str(task.env.sim.model).replace('<geom name="wall"', f'{puck}<geom name="wall"')
    model = re.sub("<option.*?/>", option, model).replace('axis="0 1 0"', 'axis="0 0 1"')
    # Kernels for each pair of shapes take seconds to compile, so only the puck and the wall collide.
    model = model.replace('<geom name="rod"', '<geom name="rod" contype="0" conaffinity="0"')
    sim = dataclasses.replace(task.env.sim, model=model, decimation=8)
    result = physics(dataclasses.replace(task, env=dataclasses.replace(task.env, sim=sim)))
    assert result.passed, result.text


def test_a_difference_from_the_c_code_is_found() -> None:
    start_warp("cpu")
    env = WatchedEnv(config("motor gear='.5'").env, 2)
    probe = PhysicsProbe(env)
    env.sim.model.opt.gravity[2] = -5.0  # changes the gravity of the C code only
    for _ in range(30):
        env.step(torch.zeros(2, 1))
    result = probe.check()
    assert not result.passed
    assert "the change of velocities in a control step differs by" in result.text


def test_nothing_is_observed_after_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    start_warp("cpu")
    env = WatchedEnv(config("motor gear='.5'").env, 2)
    probe = PhysicsProbe(env)
    env.step(torch.zeros(2, 1))
    probe.remove()
    monkeypatch.delattr(mujoco, "mj_step")  # a comparison would call mj_step
    for _ in range(30):
        env.step(torch.zeros(2, 1))
