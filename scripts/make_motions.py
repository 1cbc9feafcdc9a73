"""Make the reference motions of quadruped-tracking: a trot, a bound and a turn.

    uv run python scripts/make_motions.py

Each motion is one cycle of a gait. The script computes the positions of the feet from the times at which they touch
the ground, and the joint positions by inverse kinematics. It writes the motions to
tasks/mjlab_dist_tasks/quadruped_tracking/motions.npz, or to the file of --output. The trunk moves at a constant speed.
Each foot is below its hip in the middle of its stance, and swings to its next foothold. Forces are not computed, so
nothing ensures that a robot can perform the motions.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from mjlab_dist.sim import load_model

Floats = NDArray[np.float64]

LEGS = ("FL", "FR", "RL", "RR")

FPS = 100

OUTPUT = Path(__file__).parents[1] / "tasks/mjlab_dist_tasks/quadruped_tracking/motions.npz"


@dataclass(frozen=True, kw_only=True)
class Gait:
    """A periodic gait."""

    period_s: float
    """Duration of a cycle."""
    touchdown: tuple[float, float, float, float]
    """Times of the touchdowns of FL, FR, RL and RR, as fractions of a cycle."""
    stance: float
    """Fraction of a cycle during which a foot is on the ground."""
    forward_m_s: float
    """Speed of the trunk along its heading."""
    yaw_rad_s: float = 0.0
    """Yaw rate."""
    height_m: float = 0.28
    """Height of the trunk above the ground."""
    lift_m: float = 0.07
    """Maximum height of a swinging foot above its height in stance."""
    pitch_rad: float = 0.0
    """Amplitude of the trunk's pitch. The nose is lowest in the middle of the front feet's stance."""


GAITS = {
    "trot": Gait(period_s=0.5, touchdown=(0.0, 0.5, 0.5, 0.0), stance=0.5, forward_m_s=0.6),
    # The forces on the feet accelerate the trunk's pitch by up to 50 rad/s², nose up while the front feet are on the
    # ground, and nose down while the rear feet are. In a cycle of 0.4 s, this leads to an amplitude of 0.2 rad.
    "bound": Gait(period_s=0.4, touchdown=(0.0, 0.0, 0.5, 0.5), stance=0.5, forward_m_s=0.7, pitch_rad=0.2),
    "turn": Gait(period_s=0.5, touchdown=(0.0, 0.5, 0.5, 0.0), stance=0.5, forward_m_s=0.3, yaw_rad_s=1.0),
}


class Leg:
    """Kinematics of a leg of ``quadruped.xml``: the hip joint turns about x, the joints of thigh and calf about y."""

    def __init__(self, model: mujoco.MjModel, name: str) -> None:
        """Look up the lengths of the links."""
        self.hip = model.body(f"{name}_hip").pos
        self.offset = model.body(f"{name}_thigh").pos[1]
        self.upper = -model.body(f"{name}_calf").pos[2]
        self.lower = -model.site(f"{name}_foot").pos[2]
        self.radius = model.geom(f"{name}_foot").size[0]

    def bend(self, foot: Floats) -> list[float]:
        """Return the angles of hip, thigh and calf in rad that move the foot to a point in trunk coordinates, in m."""
        x, y, z = foot - self.hip
        down = math.sqrt(y * y + z * z - self.offset**2)
        hip = math.atan2(z, y) - math.atan2(-down, self.offset)
        cosine = (x * x + down * down - self.upper**2 - self.lower**2) / (2 * self.upper * self.lower)
        knee = math.acos(cosine)
        thigh = math.atan2(-x, down) + math.atan2(self.lower * math.sin(knee), self.upper + self.lower * cosine)
        return [math.remainder(hip, 2 * math.pi), thigh, -knee]


def main() -> None:
    """Make all motions and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="npz file to write")
    output = parser.parse_args().output
    model = load_model("mjlab_dist_tasks.quadruped:quadruped.xml")
    legs = [Leg(model, name) for name in LEGS]
    motions = {name: make(gait, legs) for name, gait in GAITS.items()}
    joints = [f"{leg}_{part}" for leg in LEGS for part in ("hip", "thigh", "calf")]
    arrays: dict[str, Any] = {"fps": FPS, "joints": joints, **motions}
    np.savez(output, **arrays)
    for name, frames in motions.items():
        print(f"{name}: {len(frames)} frames")
    print(output)


def make(gait: Gait, legs: list[Leg]) -> Floats:
    """Return the frames (poses) of one cycle, from its start to its end inclusive, (frames, 19)."""
    frames = np.arange(round(gait.period_s * FPS) + 1)
    return np.stack([pose(gait, legs, frame / FPS) for frame in frames])


def pose(gait: Gait, legs: list[Leg], time_s: float) -> Floats:
    """Return the trunk's position and quaternion in world coordinates, then the joint positions, at a time, (19,)."""
    middle_of_front_stance_s = (gait.touchdown[0] + gait.stance / 2) * gait.period_s
    phase = 2 * math.pi * (time_s - middle_of_front_stance_s) / gait.period_s
    yaw, pitch = gait.yaw_rad_s * time_s, gait.pitch_rad * math.cos(phase)
    position = np.append(over_ground(gait, np.zeros(2), time_s), gait.height_m)
    to_trunk = (about_z(yaw) @ about_y(pitch)).T
    angles = [
        angle
        for leg, touchdown in zip(legs, gait.touchdown, strict=True)
        for angle in leg.bend(to_trunk @ (foot(gait, leg, touchdown, time_s) - position))
    ]
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, to_trunk.T.ravel())
    return np.concatenate([position, quat, angles])


def foot(gait: Gait, leg: Leg, touchdown: float, time_s: float) -> Floats:
    """Return the position of a foot's center in world coordinates, (3,)."""
    cycles = time_s / gait.period_s - touchdown
    cycle = math.floor(cycles)
    under_hip = np.array([leg.hip[0], leg.hip[1] + leg.offset])
    here, there = (
        over_ground(gait, under_hip, (touchdown + n + gait.stance / 2) * gait.period_s) for n in (cycle, cycle + 1)
    )
    swung = max(0.0, (cycles - cycle - gait.stance) / (1 - gait.stance))
    # The foot is at rest at the start and at the end of its swing.
    share = swung - math.sin(2 * math.pi * swung) / (2 * math.pi)
    lift = gait.lift_m * (1 - math.cos(2 * math.pi * swung)) / 2
    return np.append(here + share * (there - here), leg.radius + lift)


def over_ground(gait: Gait, point: Floats, time_s: float) -> Floats:
    """Convert a point on the ground, (2,), from trunk to world coordinates. The trunk moves on a line or a circle."""
    yaw = gait.yaw_rad_s * time_s
    distance = gait.forward_m_s * time_s
    # sin(a) / a and (1 - cos(a)) / a, which are 1 and 0 on a line
    along, aside = (math.sin(yaw) / yaw, (1 - math.cos(yaw)) / yaw) if yaw else (1.0, 0.0)
    return distance * np.array([along, aside]) + about_z(yaw)[:2, :2] @ point


def about_z(angle: float) -> Floats:
    """Return the rotation matrix about z, (3, 3)."""
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def about_y(angle: float) -> Floats:
    """Return the rotation matrix about y, (3, 3). A positive angle moves the nose down."""
    cos, sin = math.cos(angle), math.sin(angle)
    return np.array([[cos, 0.0, sin], [0.0, 1.0, 0.0], [-sin, 0.0, cos]])


if __name__ == "__main__":
    main()
