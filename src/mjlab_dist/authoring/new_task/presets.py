"""Published parameters of the motors of some robots."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mjlab_dist.config import ActuatorConfig


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The motors of a robot."""

    # Maker and name of the robot
    label: str
    # A robot can have this preset if one of its names, such as its file name, contains this word. The word consists of
    # lowercase letters, digits and underscores.
    name: str
    # Where the parameters were published
    source: str
    # Groups of motors by name. Their joints are given as regular expressions.
    motors: dict[str, ActuatorConfig]


def find_preset(names: Iterable[str], joints: Iterable[str]) -> Preset | None:
    """Return the preset of a robot; None if there is none.

    A preset belongs to a robot if one of the robot's names contains the preset's name, and each of the preset's groups
    of motors matches a joint. Names alone are not enough, because files of the same robot use different joint names.
    """
    words = ["_".join(["", *re.findall(r"[a-z0-9]+", name.lower()), ""]) for name in names]
    known = list(joints)
    for preset in PRESETS:
        is_named = any(f"_{preset.name}_" in word for word in words)
        if is_named and all(matched_joints(group, known) for group in preset.motors.values()):
            return preset
    return None


def matched_joints(group: ActuatorConfig, joints: Iterable[str]) -> tuple[str, ...]:
    """Return the joints that get a group of motors."""
    return tuple(name for name in joints if any(re.fullmatch(pattern, name) for pattern in group.joints))


def _motors(
    stiffness: float, damping: float, effort: float, velocity: float | None, armature: float | None, *joints: str
) -> ActuatorConfig:
    """Return a group of position motors.

    For hinges, the units of the parameters, from stiffness to armature, are N m/rad, N m s/rad, N m, rad/s and kg m².
    For slide joints, they are N/m, N s/m, N, m/s and kg.
    """
    return ActuatorConfig(
        joints=joints,
        stiffness=stiffness,
        damping=damping,
        effort_limit=effort,
        velocity_limit=velocity,
        armature=armature,
    )


# Columns of the tables below: stiffness, damping, effort limit, velocity limit, armature, joints

_GO1 = Preset(
    label="Unitree Go1",
    name="go1",
    source="torque and speed: Unitree's Go1 motor; armature: go1.urdf of unitree_ros (inertia of the rotor, 1.118e-4 "
    "kg m^2, with gear ratios of 6 and 9); gains: mjlab 1.6, natural frequency 10 Hz, damping ratio 2",
    motors={
        "hips": _motors(15.9, 1.01, 23.7, 30.1, 0.00403, ".*_hip_joint", ".*_thigh_joint"),
        "knees": _motors(35.8, 2.28, 35.55, 20.06, 0.00906, ".*_calf_joint"),
    },
)

_GO2 = Preset(
    label="Unitree Go2",
    name="go2",
    source="torque and speed: go2_description.urdf of unitree_ros; armature: MuJoCo Menagerie; gains: Isaac Lab",
    motors={
        "hips": _motors(25.0, 0.5, 23.7, 30.1, 0.01, ".*_hip_joint", ".*_thigh_joint"),
        "knees": _motors(25.0, 0.5, 45.43, 15.7, 0.01, ".*_calf_joint"),
    },
)

# Reflected inertia of a two-stage planetary gear with rotor inertias I1, I2, I3 and ratios n1, n2:
# I1 (n1 n2)² + I2 n2² + I3. The group "parallel" has twice the values of a motor 5020, because two drive each joint.
_G1 = Preset(
    label="Unitree G1 with 29 joints",
    name="g1",
    source="motors 5020, 7520 and 4010 of Unitree, as in mjlab 1.6; gains: natural frequency 10 Hz, damping ratio 2",
    motors={
        "arms": _motors(
            14.25,
            0.907,
            25.0,
            37.0,
            0.00361,
            ".*_shoulder_(pitch|roll|yaw)_joint",
            ".*_elbow_joint",
            ".*_wrist_roll_joint",
        ),
        "hips": _motors(40.2, 2.56, 88.0, 32.0, 0.0102, ".*_hip_(pitch|yaw)_joint", "waist_yaw_joint"),
        "knees": _motors(99.1, 6.31, 139.0, 20.0, 0.0251, ".*_hip_roll_joint", ".*_knee_joint"),
        "wrists": _motors(16.8, 1.07, 5.0, 22.0, 0.00425, ".*_wrist_(pitch|yaw)_joint"),
        "parallel": _motors(28.5, 1.81, 50.0, 37.0, 0.00722, "waist_(pitch|roll)_joint", ".*_ankle_(pitch|roll)_joint"),
    },
)

_H1 = Preset(
    label="Unitree H1",
    name="h1",
    source="torque and armature: MuJoCo Menagerie; gains: Isaac Lab",
    motors={
        "hips": _motors(150.0, 5.0, 200.0, None, 0.1, ".*_hip_(yaw|roll)"),
        "pitch": _motors(200.0, 5.0, 200.0, None, 0.1, ".*_hip_pitch", "torso"),
        "knees": _motors(200.0, 5.0, 300.0, None, 0.1, ".*_knee"),
        "ankles": _motors(20.0, 4.0, 40.0, None, 0.1, ".*_ankle"),
        "shoulders": _motors(40.0, 10.0, 40.0, None, 0.1, ".*_shoulder_(pitch|roll)"),
        "elbows": _motors(40.0, 10.0, 18.0, None, 0.1, ".*_shoulder_yaw", ".*_elbow"),
    },
)

_ANYMAL_C = Preset(
    label="ANYbotics ANYmal C",
    name="anymal_c",
    source="torque and speed: ANYdrive 3.0, as in Isaac Lab; gains: Rudin et al. 2022, arXiv:2109.11978",
    motors={
        "legs": _motors(80.0, 2.0, 80.0, 7.5, None, ".*_?(HAA|HFE|KFE)"),
    },
)

_SPOT = Preset(
    label="Boston Dynamics Spot",
    name="spot",
    source="Isaac Lab; the torque of the knees is the maximum of Isaac Lab's table of torques by knee angle",
    motors={
        "hips": _motors(60.0, 1.5, 45.0, None, None, "[fh][lr]_h[xy](_leg_joint)?"),
        "knees": _motors(60.0, 1.5, 113.0, None, None, "[fh][lr]_kn(_leg_joint)?"),
    },
)

_FRANKA = Preset(
    label="Franka Emika Panda",
    name="panda",
    source="torque: data sheet of Franka Emika; gains: Isaac Lab, stiff version",
    motors={
        "arm": _motors(400.0, 80.0, 87.0, None, None, "(.*_)?joint[1-4]"),
        "wrist": _motors(400.0, 80.0, 12.0, None, None, "(.*_)?joint[5-7]"),
    },
)

_UR5E = Preset(
    label="Universal Robots UR5e",
    name="ur5e",
    source="torque: Universal Robots, maximum joint torques; gains and armature: MuJoCo Menagerie",
    motors={
        "arm": _motors(3500.0, 200.0, 150.0, None, 0.1, "(.*_)?(shoulder_pan|shoulder_lift|elbow)_joint"),
        "wrist": _motors(3000.0, 15.0, 28.0, None, 0.1, "(.*_)?wrist_[1-3]_joint"),
    },
)

# With these gains, each joint with all links behind it has a natural frequency of 2 Hz and a damping ratio of 2.
_YAM = Preset(
    label="I2RT YAM",
    name="yam",
    source="motors DM4340 and DM4310: I2RT's motor_drivers/utils.py; gains and armature: mjlab 1.6",
    motors={
        "joint1": _motors(19.4, 6.19, 28.0, 10.0, 0.032, "joint1"),
        "joint2": _motors(43.8, 13.9, 28.0, 10.0, 0.032, "joint2"),
        "joint3": _motors(36.8, 11.7, 28.0, 10.0, 0.032, "joint3"),
        "joint4": _motors(4.76, 1.52, 10.0, 30.0, 0.0018, "joint4"),
        "joint5": _motors(1.44, 0.459, 10.0, 30.0, 0.0018, "joint5"),
        "joint6": _motors(0.453, 0.144, 10.0, 30.0, 0.0018, "joint6"),
        # The motor drives the fingers through a crank of 0.0263 m/rad, and is limited to a tenth of its force
        "gripper": _motors(110.0, 69.9, 38.0, 0.789, 2.6, "(left|right)_finger"),
    },
)

# All presets
PRESETS = (_GO1, _GO2, _G1, _H1, _ANYMAL_C, _SPOT, _FRANKA, _UR5E, _YAM)
