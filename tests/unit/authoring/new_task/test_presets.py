"""Presets of motors: each matches the files of one robot, and drives each joint of this robot once."""

from pathlib import Path

import pytest

from mjlab_dist.authoring.new_task import found, guessed
from mjlab_dist.authoring.new_task.presets import find_preset, matched_joints
from mjlab_dist.authoring.new_task.robot import Robot, examine
from mjlab_dist.authoring.new_task.source import Names
from mjlab_dist.authoring.new_task.source.config import config_source

LEGS = ("FR", "FL", "RR", "RL")
UNITREE = [f"{leg}_{joint}_joint" for leg in LEGS for joint in ("hip", "thigh", "calf")]
SIDES = ("left", "right")
G1 = [
    f"{side}_{joint}_joint"
    for side in SIDES
    for joint in (
        *("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll"),
        *("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw"),
    )
] + ["waist_yaw_joint", "waist_roll_joint", "waist_pitch_joint"]
H1 = [
    f"{side}_{joint}"
    for side in SIDES
    for joint in (
        *("hip_yaw", "hip_roll", "hip_pitch", "knee", "ankle"),
        *("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow"),
    )
] + ["torso"]
ANYMAL = [f"{leg}_{joint}" for leg in ("LF", "RF", "LH", "RH") for joint in ("HAA", "HFE", "KFE")]
SPOT = [f"{leg}_{joint}" for leg in ("fl", "fr", "hl", "hr") for joint in ("hx", "hy", "kn")]
UR5E = [f"{joint}_joint" for joint in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")]
PANDA = [f"joint{i}" for i in range(1, 8)]
YAM = [f"joint{i}" for i in range(1, 7)]


@pytest.mark.parametrize(
    ("label", "names", "joints"),
    [
        ("Unitree Go1", ["go1"], UNITREE),
        ("Unitree Go2", ["unitree_go2"], UNITREE),
        ("Unitree G1 with 29 joints", ["g1_29dof_rev_1_0"], G1),
        ("Unitree H1", ["scene", "h1"], H1),
        ("ANYbotics ANYmal C", ["anymal_c"], ANYMAL),
        ("Boston Dynamics Spot", ["spot"], SPOT),
        ("Boston Dynamics Spot", ["spot"], [f"{name}_leg_joint" for name in SPOT]),
        ("Franka Emika Panda", ["panda"], PANDA),
        ("Franka Emika Panda", ["panda"], [f"panda_{name}" for name in PANDA]),
        ("Universal Robots UR5e", ["ur5e"], UR5E),
        ("I2RT YAM", ["yam_v0"], [*YAM, "left_finger"]),
        ("I2RT YAM", ["yam_v0"], [*YAM, "right_finger"]),
    ],
)
def test_a_preset_drives_each_joint_of_its_robot_once(label: str, names: list[str], joints: list[str]) -> None:
    preset = find_preset(names, joints)
    assert preset is not None
    assert preset.label == label
    matched = [name for group in preset.motors.values() for name in matched_joints(group, joints)]
    assert sorted(matched) == sorted(joints)


@pytest.mark.parametrize(
    ("names", "joints"),
    [
        (["a1"], UNITREE),  # joints of a Go1, but another robot
        (["go12"], UNITREE),
        (["h1_2"], [f"{name}_joint" for name in H1]),  # the joints of an H1-2 have other names
        (["g1_23dof"], [name for name in G1 if "wrist_pitch" not in name and "wrist_yaw" not in name]),
    ],
)
def test_another_robot_has_no_preset(names: list[str], joints: list[str]) -> None:
    assert find_preset(names, joints) is None


def arm(name: str, joints: list[str], more: str = "") -> str:
    """Return the MJCF of a chain of links with the given joints."""
    head = "".join(
        f"""<body pos="0 0 .2"><joint name="{joint}" axis="{i % 2} {1 - i % 2} 0" range="-90 90"/>
        <geom type="capsule" size=".03" fromto="0 0 0 0 0 .2" mass="1"/>"""
        for i, joint in enumerate(joints)
    )
    return f"""<mujoco model="{name}"><worldbody>{head}{"</body>" * len(joints)}</worldbody>{more}</mujoco>"""


def motors(kind: str, joints: list[str]) -> str:
    return "<actuator>" + "".join(f'<{kind} name="{joint}" joint="{joint}"/>' for joint in joints) + "</actuator>"


def examined(tmp_path: Path, xml: str, *names: str) -> Robot:
    mjcf = tmp_path / "robot.xml"
    mjcf.write_text(xml)
    return examine(mjcf, names=names)


@pytest.mark.parametrize("more", ["", motors("motor", UR5E)], ids=["no actuators", "torques"])
def test_a_known_robot_gets_its_published_motors(tmp_path: Path, more: str) -> None:
    robot = examined(tmp_path, arm("ur5e", UR5E, more))
    assert robot.preset is not None
    assert {joint for motor in robot.motors.values() for joint in motor.joints} == set(UR5E)
    assert {motor.effort_limit for motor in robot.motors.values()} == {150.0, 28.0}
    (block,) = robot.blocks.values()
    assert (block.actuators, block.kind, block.offset) == ((".*",), "position", "home")
    source = config_source(Names(task="arm", module="arm", function="arm", file="arm.xml"), robot)
    assert "Universal Robots UR5e" in source
    assert "effort_limit=150.0" in source
    assert "published motors" in found(robot)
    assert not [line for line in guessed(robot) if "motors" in line]


def test_position_motors_of_the_file_are_kept(tmp_path: Path) -> None:
    robot = examined(tmp_path, arm("ur5e", UR5E, motors("position", UR5E)))
    assert robot.preset is None
    assert not robot.motors


def test_the_name_of_the_robot_may_be_given(tmp_path: Path) -> None:
    xml = arm("scene", UR5E)
    assert examined(tmp_path, xml).preset is None
    assert examined(tmp_path, xml, "ur5e").preset is not None


def test_joints_without_a_preset_get_estimated_motors(tmp_path: Path) -> None:
    robot = examined(tmp_path, arm("ur5e", [*UR5E, "finger"]))
    assert robot.preset is not None
    estimated = [motor for name, motor in robot.motors.items() if name not in robot.preset.motors]
    assert [motor.joints for motor in estimated] == [("finger",)]
    assert robot.motors.keys() > robot.preset.motors.keys()
    assert [line for line in guessed(robot) if "motors" in line]
