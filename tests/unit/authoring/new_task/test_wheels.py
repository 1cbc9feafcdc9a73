"""Robots on wheels: actions set velocities, and a constant action drives forward."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import mujoco
import pytest
import torch

import mjlab_dist
from mjlab_dist.authoring.new_task import create
from mjlab_dist.authoring.new_task.joints import find_base
from mjlab_dist.authoring.new_task.motor_sizing import find_wheels
from mjlab_dist.authoring.new_task.robot import examine
from mjlab_dist.authoring.new_task.settling import start_state
from mjlab_dist.env import Env

PLACES = {"fl": (0.2, 0.15), "fr": (0.2, -0.15), "rl": (-0.2, 0.15), "rr": (-0.2, -0.15)}

RADIUS_M = 0.08


def rover(axes: dict[str, str] | None = None, wheel: str = 'type="cylinder" size=".08 .02" euler="90 0 0"') -> str:
    wheels = "".join(
        f'<body pos="{x} {y} 0"><joint name="{name}" axis="{(axes or {}).get(name, "0 1 0")}"/>'
        f'<geom {wheel} mass=".5"/></body>'
        for name, (x, y) in PLACES.items()
    )
    return f"""
    <mujoco>
      <option timestep=".004"/>
      <worldbody>
        <geom type="plane" size="0 0 1"/>
        <body name="chassis" pos="0 0 {RADIUS_M}"><freejoint name="root"/>
          <geom type="box" size=".25 .1 .05" mass="8" pos="0 0 .06"/>{wheels}
        </body>
      </worldbody>
    </mujoco>"""


@pytest.mark.parametrize(
    ("xml", "is_rover"),
    [
        (rover(), True),
        (rover(wheel='type="sphere" size=".08"'), True),
        (rover(wheel='type="sphere" size=".04" pos="0 0 -.04"'), False),  # legs, not wheels
        (rover().replace('pos="0 0 .06"/>', 'pos="0 0 -.1"/>'), False),  # wheels above the ground
        (rover(axes=dict.fromkeys(PLACES, "0 0 1")), False),
        (rover(axes=dict.fromkeys(PLACES, '0 1 0" range="-90 90')), False),
    ],
)
def test_wheels_have_no_limits_and_reach_the_ground(xml: str, is_rover: bool) -> None:
    model = mujoco.MjModel.from_xml_string(xml)
    start = start_state(model, None)
    wheels = find_wheels(model, start, 1, [1, 2, 3, 4])
    assert list(wheels) == ([1, 2, 3, 4] if is_rover else [])
    for wheel in wheels.values():
        assert wheel.radius_m == pytest.approx(RADIUS_M)


@pytest.mark.parametrize(("origin_m", "is_low"), [(0.0, True), (0.015, True), (RADIUS_M, False)])
def test_a_base_near_the_ground_does_not_fall_by_sinking(origin_m: float, is_low: bool) -> None:
    lift = RADIUS_M - origin_m
    xml = rover().replace(f'pos="0 0 {RADIUS_M}"', f'pos="0 0 {origin_m}"').replace("0 0 .06", f"0 0 {0.06 + lift}")
    for x, y in PLACES.values():
        xml = xml.replace(f'<body pos="{x} {y} 0">', f'<body pos="{x} {y} {lift}">')
    model = mujoco.MjModel.from_xml_string(xml)
    assert (find_base(model, start_state(model, None), [0]).min_height_m is None) is is_low


def test_an_action_of_1_drives_forward_at_twice_the_rewarded_speed(tmp_path: Path) -> None:
    # The axes of the right wheels point outwards, so these wheels drive forward at negative speeds.
    (tmp_path / "rover.xml").write_text(rover(axes={"fr": "0 -1 0", "rr": "0 -1 0"}))
    robot = examine(tmp_path / "rover.xml")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "rover.xml"))
    speed_m_s = find_base(model, start_state(model, None), [0]).speed_m_s
    scales = {name: block.scale for block in robot.blocks.values() for name in block.actuators}
    assert {block.kind for block in robot.blocks.values()} == {"velocity"}
    assert scales["fl"] == pytest.approx(2 * speed_m_s / RADIUS_M, rel=0.05)
    assert scales == {"fl": scales["fl"], "fr": -scales["fl"], "rl": scales["fl"], "rr": -scales["fl"]}


@pytest.mark.slow
def test_a_rover_trains_and_drives_forward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rover.xml").write_text(rover())
    made = create("a-rover", tmp_path / "rover.xml", tmp_path)
    assert made.problem == ""
    monkeypatch.syspath_prepend(str(made.folder))
    config = importlib.import_module("a_rover.config").a_rover()
    env = Env(config.env, 2, "cpu")
    env.reset()
    for _ in range(100):
        env.step(torch.full((2, 4), 0.5))
    speed_m_s = config.env.rewards["forward"].params["max_m_s"]
    assert env.sim.qvel[:, :2].norm(dim=1) == pytest.approx([speed_m_s, speed_m_s], rel=0.1)
    short = dataclasses.replace(config, num_envs=4, total_num_envs=None, max_iterations=3)
    result = mjlab_dist.train(short, gpu_ids=None, log_root=str(tmp_path / "logs"), quiet=True)
    assert len(result.history["loss/value"]) == 3
