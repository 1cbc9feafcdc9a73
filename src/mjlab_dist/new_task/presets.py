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
    *joints: str,
    stiffness: float,
    damping: float,
    effort: float,
    velocity: float | None = None,
    armature: float | None = None,
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


_GO1 = Preset(
    label="Unitree Go1",
    name="go1",
    source="torque and speed: Unitree's Go1 motor; armature: go1.urdf of unitree_ros (inertia of the rotor, 1.118e-4 "
    "kg m^2, with gear ratios of 6 and 9); gains: mjlab 1.6, natural frequency 10 Hz, damping ratio 2",
    motors={
        "hips": _motors(
            ".*_hip_joint",
            ".*_thigh_joint",
            stiffness=15.9,
            damping=1.01,
            effort=23.7,
            velocity=30.1,
            armature=0.00403,
        ),
        "knees": _motors(".*_calf_joint", stiffness=35.8, damping=2.28, effort=35.55, velocity=20.06, armature=0.00906),
    },
)

_GO2 = Preset(
    label="Unitree Go2",
    name="go2",
    source="torque and speed: go2_description.urdf of unitree_ros; armature: MuJoCo Menagerie; gains: Isaac Lab",
    motors={
        "hips": _motors(
            ".*_hip_joint", ".*_thigh_joint", stiffness=25.0, damping=0.5, effort=23.7, velocity=30.1, armature=0.01
        ),
        "knees": _motors(".*_calf_joint", stiffness=25.0, damping=0.5, effort=45.43, velocity=15.7, armature=0.01),
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
            ".*_shoulder_(pitch|roll|yaw)_joint",
            ".*_elbow_joint",
            ".*_wrist_roll_joint",
            stiffness=14.25,
            damping=0.907,
            effort=25.0,
            velocity=37.0,
            armature=0.00361,
        ),
        "hips": _motors(
            ".*_hip_(pitch|yaw)_joint",
            "waist_yaw_joint",
            stiffness=40.2,
            damping=2.56,
            effort=88.0,
            velocity=32.0,
            armature=0.0102,
        ),
        "knees": _motors(
            ".*_hip_roll_joint",
            ".*_knee_joint",
            stiffness=99.1,
            damping=6.31,
            effort=139.0,
            velocity=20.0,
            armature=0.0251,
        ),
        "wrists": _motors(
            ".*_wrist_(pitch|yaw)_joint", stiffness=16.8, damping=1.07, effort=5.0, velocity=22.0, armature=0.00425
        ),
        "parallel": _motors(
            "waist_(pitch|roll)_joint",
            ".*_ankle_(pitch|roll)_joint",
            stiffness=28.5,
            damping=1.81,
            effort=50.0,
            velocity=37.0,
            armature=0.00722,
        ),
    },
)

_H1 = Preset(
    label="Unitree H1",
    name="h1",
    source="torque and armature: MuJoCo Menagerie; gains: Isaac Lab",
    motors={
        "hips": _motors(
            ".*_hip_(yaw|roll)",
            stiffness=150.0,
            damping=5.0,
            effort=200.0,
            armature=0.1,
        ),
        "pitch": _motors(".*_hip_pitch", "torso", stiffness=200.0, damping=5.0, effort=200.0, armature=0.1),
        "knees": _motors(".*_knee", stiffness=200.0, damping=5.0, effort=300.0, armature=0.1),
        "ankles": _motors(".*_ankle", stiffness=20.0, damping=4.0, effort=40.0, armature=0.1),
        "shoulders": _motors(".*_shoulder_(pitch|roll)", stiffness=40.0, damping=10.0, effort=40.0, armature=0.1),
        "elbows": _motors(".*_shoulder_yaw", ".*_elbow", stiffness=40.0, damping=10.0, effort=18.0, armature=0.1),
    },
)

_ANYMAL_C = Preset(
    label="ANYbotics ANYmal C",
    name="anymal_c",
    source="torque and speed: ANYdrive 3.0, as in Isaac Lab; gains: Rudin et al. 2022, arXiv:2109.11978",
    motors={
        "legs": _motors(".*_?(HAA|HFE|KFE)", stiffness=80.0, damping=2.0, effort=80.0, velocity=7.5),
    },
)

_SPOT = Preset(
    label="Boston Dynamics Spot",
    name="spot",
    source="Isaac Lab; the torque of the knees is the maximum of Isaac Lab's table of torques by knee angle",
    motors={
        "hips": _motors("[fh][lr]_h[xy](_leg_joint)?", stiffness=60.0, damping=1.5, effort=45.0),
        "knees": _motors("[fh][lr]_kn(_leg_joint)?", stiffness=60.0, damping=1.5, effort=113.0),
    },
)

_FRANKA = Preset(
    label="Franka Emika Panda",
    name="panda",
    source="torque: data sheet of Franka Emika; gains: Isaac Lab, stiff version",
    motors={
        "arm": _motors("(.*_)?joint[1-4]", stiffness=400.0, damping=80.0, effort=87.0),
        "wrist": _motors("(.*_)?joint[5-7]", stiffness=400.0, damping=80.0, effort=12.0),
    },
)

_UR5E = Preset(
    label="Universal Robots UR5e",
    name="ur5e",
    source="torque: Universal Robots, maximum joint torques; gains and armature: MuJoCo Menagerie",
    motors={
        "arm": _motors(
            "(.*_)?(shoulder_pan|shoulder_lift|elbow)_joint",
            stiffness=3500.0,
            damping=200.0,
            effort=150.0,
            armature=0.1,
        ),
        "wrist": _motors("(.*_)?wrist_[1-3]_joint", stiffness=3000.0, damping=15.0, effort=28.0, armature=0.1),
    },
)

# With these gains, each joint with all links behind it has a natural frequency of 2 Hz and a damping ratio of 2.
_YAM = Preset(
    label="I2RT YAM",
    name="yam",
    source="motors DM4340 and DM4310: I2RT's motor_drivers/utils.py; gains and armature: mjlab 1.6",
    motors={
        "joint1": _motors("joint1", stiffness=19.4, damping=6.19, effort=28.0, velocity=10.0, armature=0.032),
        "joint2": _motors("joint2", stiffness=43.8, damping=13.9, effort=28.0, velocity=10.0, armature=0.032),
        "joint3": _motors("joint3", stiffness=36.8, damping=11.7, effort=28.0, velocity=10.0, armature=0.032),
        "joint4": _motors("joint4", stiffness=4.76, damping=1.52, effort=10.0, velocity=30.0, armature=0.0018),
        "joint5": _motors("joint5", stiffness=1.44, damping=0.459, effort=10.0, velocity=30.0, armature=0.0018),
        "joint6": _motors("joint6", stiffness=0.453, damping=0.144, effort=10.0, velocity=30.0, armature=0.0018),
        # The motor drives the fingers through a crank of 0.0263 m/rad, and is limited to a tenth of its force
        "gripper": _motors(
            "(left|right)_finger", stiffness=110.0, damping=69.9, effort=38.0, velocity=0.789, armature=2.6
        ),
    },
)

# All presets
PRESETS = (_GO1, _GO2, _G1, _H1, _ANYMAL_C, _SPOT, _FRANKA, _UR5E, _YAM)
