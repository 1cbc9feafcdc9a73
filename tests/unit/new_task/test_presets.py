"""Presets of motors: each belongs to the files of one robot, and drives each of its joints once."""

import pytest

from mjlab_dist.new_task.presets import find_preset, matched_joints

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
        (["h1_2"], [f"{name}_joint" for name in H1]),  # its joints are called differently
        (["g1_23dof"], [name for name in G1 if "wrist_pitch" not in name and "wrist_yaw" not in name]),
    ],
)
def test_another_robot_has_no_preset(names: list[str], joints: list[str]) -> None:
    assert find_preset(names, joints) is None


def test_additional_joints_do_not_matter() -> None:
    preset = find_preset(["panda"], [*PANDA, "finger_joint1", "finger_joint2"])
    assert preset is not None
    assert preset.name == "panda"
