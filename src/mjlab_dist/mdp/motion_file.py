"""Motion files: read, and turned into what a robot is to do at each control step."""

from __future__ import annotations

import zipfile
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from mjlab_dist.errors import UserError
from mjlab_dist.mdp.rotation import heading
from mjlab_dist.sim.scene import find_file

Floats = NDArray[np.float64]

_KEYS = ("fps", "joints")

_FORMAT = "it has to hold fps, joints, and an array (frames, 7 + joints) per motion"


class MotionFile(NamedTuple):
    """What is in a file."""

    fps: float
    """Frames a second."""
    joints: tuple[str, ...]
    """Names of the joints, k of them."""
    motions: dict[str, Floats]
    """By name: position in m, unit quaternion (w, x, y, z) and the joints' positions in rad or m, (frames, 7 + k)."""


class Robot(NamedTuple):
    """What of a model a motion moves."""

    model: mujoco.MjModel
    """The model."""
    qpos: tuple[int, ...]
    """Columns of ``qpos`` in the order of a motion's, 7 + k."""
    qvel: tuple[int, ...]
    """Columns of ``qvel`` in that order, 6 + k."""
    body: int
    """Id of the body that floats."""
    sites: tuple[int, ...]
    """Ids of the sites that are looked at."""


class Reference(NamedTuple):
    """Motions a control step apart, one after another."""

    pose: Floats
    """Position, orientation and joints, (frames, 7 + k)."""
    velocity: Floats
    """Linear in the frame of the motion, angular in the body's, and of the joints, (frames, 6 + k)."""
    sites: Floats
    """Sites in the body's frame one substep earlier, in m, (frames, sites, 3)."""
    next: NDArray[np.int64]
    """The frame that follows: after the last of a motion its first, (frames,)."""
    onward: Floats
    """How the motion's frame moves with that: x, y in m and yaw in rad, 0 but at the end of a motion, (frames, 3)."""


def read_motions(file: str) -> MotionFile:
    """Read a motion file.

    Args:
        file: An npz: its path, or ``package.module:file``.

    Raises:
        UserError: If there is no such file, or it holds something else.
    """
    flag = f"motions {file}"
    path = find_file(flag, file)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise UserError(f"{flag}: is no npz of plain arrays; {_FORMAT}") from error
    missing = [key for key in _KEYS if key not in found]
    motions = {name: frames for name, frames in found.items() if name not in _KEYS}
    if missing or not motions:
        raise UserError(f"{flag}: has no {' and no '.join(missing or ['motion'])}; {_FORMAT}")
    fps, joints = found["fps"], tuple(map(str, found["joints"].ravel()))
    if fps.size != 1 or fps.dtype.kind not in "fiu" or not 0 < float(fps.item()) < np.inf:
        raise UserError(f"{flag}: fps is {fps.tolist()}; it has to be one positive number")
    if len(set(joints)) < len(joints):
        raise UserError(f"{flag}: joints names one twice, of {', '.join(joints)}")
    return MotionFile(
        float(fps.item()),
        joints,
        {name: _checked(f"{flag}: {name}", frames, 7 + len(joints)) for name, frames in motions.items()},
    )


def _checked(flag: str, frames: NDArray[np.generic], width: int) -> Floats:
    if frames.dtype.kind not in "fiu" or frames.ndim != 2 or frames.shape[1] != width or len(frames) < 2:
        raise UserError(f"{flag} is of shape {frames.shape}; it has to be (2 or more frames, {width} numbers)")
    numbers = frames.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{flag} holds numbers that are not finite; mend frame {int(np.argmin(np.isfinite(numbers).all(axis=1)))}"
        )
    lengths = np.linalg.norm(numbers[:, 3:7], axis=1)
    if np.abs(lengths - 1.0).max() > 1e-2:
        raise UserError(
            f"{flag}: columns 3 to 6 are no unit quaternion in frame {int(np.argmax(np.abs(lengths - 1.0)))}"
        )
    numbers[:, 3:7] /= lengths[:, None]
    return numbers


def make_reference(robot: Robot, motions: list[Floats], fps: float, dt_s: float) -> Reference:
    """Cut motions into control steps.

    Args:
        robot: What they move.
        motions: (frames, 7 + k) each.
        fps: Frames a second.
        dt_s: Control step; a motion's length is rounded to a whole number of them.
    """
    clips = [_cut(robot, frames, fps, dt_s) for frames in motions]
    ends = np.cumsum([len(clip.pose) for clip in clips])
    starts = np.concatenate([[0], ends[:-1]])
    return Reference(
        pose=np.concatenate([clip.pose for clip in clips]),
        velocity=np.concatenate([clip.velocity for clip in clips]),
        sites=np.concatenate([clip.sites for clip in clips]),
        next=np.concatenate([clip.next + start for clip, start in zip(clips, starts, strict=True)]),
        onward=np.concatenate([clip.onward for clip in clips]),
    )


def _cut(robot: Robot, frames: Floats, fps: float, dt_s: float) -> Reference:
    model = robot.model
    given = np.tile(model.qpos0, (len(frames), 1))
    given[:, robot.qpos] = frames
    steps = max(1, round((len(frames) - 1) / fps / dt_s))
    qpos = np.stack([_between(model, given, at) for at in np.linspace(0, len(frames) - 1, steps + 1)])
    # Central differences, and one-sided ones at both ends.
    around = [(max(i - 1, 0), min(i + 1, steps)) for i in range(steps)]
    qvel = np.stack([_difference(model, qpos[a], qpos[b], (b - a) * dt_s) for a, b in around])
    onward = np.zeros((steps, 3))
    onward[-1] = _ground_move(qpos[0, robot.qpos[:7]], qpos[-1, robot.qpos[:7]])
    return Reference(
        pose=qpos[:-1, robot.qpos],
        velocity=qvel[:, robot.qvel],
        sites=_sites(robot, qpos[:-1], qvel),
        next=np.append(np.arange(1, steps), 0),
        onward=onward,
    )


def _between(model: mujoco.MjModel, frames: Floats, at: float) -> Floats:
    """Interpolate; orientations turn at a constant rate."""
    before = min(int(at), len(frames) - 2)
    pose = frames[before].copy()
    mujoco.mj_integratePos(model, pose, _difference(model, frames[before], frames[before + 1], 1.0), at - before)
    return pose


def _difference(model: mujoco.MjModel, before: Floats, after: Floats, time_s: float) -> Floats:
    velocity = np.zeros(model.nv)
    mujoco.mj_differentiatePos(model, velocity, time_s, before, after)
    return velocity


def _ground_move(first: Floats, last: Floats) -> Floats:
    """The turn about the vertical, and then the move over ground, that take the first pose to the last: x, y, yaw."""
    yaw = float(heading(torch.from_numpy(last[3:])) - heading(torch.from_numpy(first[3:])))
    cos, sin = np.cos(yaw), np.sin(yaw)
    x, y = first[:2]
    return np.array([last[0] - (cos * x - sin * y), last[1] - (sin * x + cos * y), yaw])


def _sites(robot: Robot, qpos: Floats, qvel: Floats) -> Floats:
    model, data = robot.model, mujoco.MjData(robot.model)
    found = np.zeros((len(qpos), len(robot.sites), 3))
    for frame, (pose, velocity) in enumerate(zip(qpos, qvel, strict=True)):
        data.qpos[:] = pose
        mujoco.mj_integratePos(model, data.qpos, velocity, -model.opt.timestep)
        mujoco.mj_kinematics(model, data)
        offset = data.site_xpos[list(robot.sites)] - data.xpos[robot.body]
        found[frame] = offset @ data.xmat[robot.body].reshape(3, 3)
    return found
