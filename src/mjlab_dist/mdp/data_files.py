"""Read motion files and the network files of learned motors.

Motions are resampled into reference motions with one frame per control step.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from mjlab_dist.errors import UserError
from mjlab_dist.mdp.rotation import heading
from mjlab_dist.sim.scene import find_file

_CONVERT = 'torch.save(torch.jit.load("motor.pt").state_dict(), "weights.pt")'


def read_layers(flag: str, file: str, num_inputs: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Read the linear layers of a network with one output, as weights (outputs, inputs) and biases (outputs,).

    Only tensors are read. A TorchScript or ONNX file is a program, and the file may come from somebody else.

    Args:
        flag: The flag and its value, for messages.
        file: Path of a state dict, or ``package.module:file``.
        num_inputs: Number of inputs.

    Raises:
        UserError: If there is no such file, or its network has the wrong form.
    """
    path = find_file(flag, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # before torch refuses TorchScript, it also warns
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, pickle.UnpicklingError, EOFError) as error:
        raise UserError(
            f"{flag}: is not a state dict; write one with torch.save, from TorchScript with {_CONVERT}"
        ) from error
    if not isinstance(state, dict) or not all(map(_is_plain, state.values())):
        raise UserError(f"{flag}: is not a state dict of numbers; write it with torch.save(network.state_dict(), file)")
    tensors = [tensor.detach().float() for tensor in state.values()]
    weights, biases = tensors[::2], tensors[1::2]
    widths = [num_inputs, *(bias.numel() for bias in biases)]
    fits = len(weights) == len(biases) > 0 and widths[-1] == 1 and all(bias.dim() == 1 for bias in biases)
    if not fits or [weight.shape for weight in weights] != list(zip(widths[1:], widths[:-1], strict=True)):
        found = " ".join("x".join(map(str, tensor.shape)) for tensor in tensors) or "none"
        raise UserError(
            f"{flag}: its tensors are {found}; use linear layers with biases, with {num_inputs} inputs (two per entry "
            "of history) and 1 output"
        )
    return list(zip(weights, biases, strict=True))


def _is_plain(value: object) -> bool:
    """Return whether a value is a dense tensor of floating-point numbers; torch also reads sparse and empty ones."""
    if not isinstance(value, torch.Tensor):
        return False
    return value.layout is torch.strided and value.device.type == "cpu" and value.is_floating_point()


Floats = NDArray[np.float64]

_KEYS = ("fps", "joints")

_FORMAT = "it must contain fps, joints (k names), and one array (frames, 7 + k) per motion"


class MotionFile(NamedTuple):
    """Contents of a motion file."""

    fps: float
    """Frames per second."""
    joints: tuple[str, ...]
    """Names of the k joints."""
    motions: dict[str, Floats]
    """Motions by name: position in m, unit quaternion (w, x, y, z), joint positions in rad or m; (frames, 7 + k)."""


class Robot(NamedTuple):
    """The parts of a model that a motion drives."""

    model: mujoco.MjModel
    """The model."""
    qpos: tuple[int, ...]
    """The 7 + k columns of ``qpos``, in the order of a motion's columns."""
    qvel: tuple[int, ...]
    """The 6 + k columns of ``qvel``, in the same order."""
    body: int
    """Id of the floating base."""
    sites: tuple[int, ...]
    """Ids of the tracked sites."""


class Reference(NamedTuple):
    """Concatenated motions, with one frame per control step."""

    pose: Floats
    """Position, orientation and joint positions, (frames, 7 + k)."""
    velocity: Floats
    """Linear velocity in the motion's coordinate system, angular velocity in the body's frame, and joint velocities,
    (frames, 6 + k)."""

    sites: Floats
    """Positions of the sites in the body's frame, one substep before the frame, in m, (frames, sites, 3)."""
    next: NDArray[np.int64]
    """Index of the following frame, (frames,). The last frame of a motion is followed by its first."""
    onward: Floats
    """Displacement of the motion's coordinate system when the motion restarts: x, y in m, yaw in rad; (frames, 3).

    It is 0 except in the last frame of each motion.
    """


def read_motions(file: str) -> MotionFile:
    """Read a motion file.

    Args:
        file: Path of an npz file, or ``package.module:file``.

    Raises:
        UserError: If there is no such file, or its contents are not as described in :class:`MotionFile`.
    """
    flag = f"motions {file}"
    path = find_file(flag, file)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise UserError(f"{flag}: is not an npz file of plain arrays; {_FORMAT}") from error
    missing = [key for key in _KEYS if key not in found]
    motions = {name: frames for name, frames in found.items() if name not in _KEYS}
    if missing or not motions:
        raise UserError(f"{flag}: has no {' and no '.join(missing or ['motion'])}; {_FORMAT}")
    fps, joints = found["fps"], tuple(map(str, found["joints"].ravel()))
    if fps.size != 1 or fps.dtype.kind not in "fiu" or not 0 < float(fps.item()) < np.inf:
        raise UserError(f"{flag}: fps is {fps.tolist()}; it must be one positive number")
    if len(set(joints)) < len(joints):
        raise UserError(f"{flag}: joints repeats a name ({', '.join(joints)}); name each joint once")
    return MotionFile(
        float(fps.item()),
        joints,
        {name: _checked(f"{flag}: {name}", frames, 7 + len(joints)) for name, frames in motions.items()},
    )


def _checked(flag: str, frames: NDArray[np.generic], width: int) -> Floats:
    if frames.dtype.kind not in "fiu":
        raise UserError(f"{flag} has the type {frames.dtype}; write it with numbers, such as float32")
    if frames.ndim != 2 or frames.shape[1] != width or len(frames) < 2:
        raise UserError(f"{flag} has the shape {frames.shape}; it must be (2 or more frames, {width} numbers)")
    numbers = frames.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{flag} contains numbers that are not finite; fix frame "
            f"{int(np.argmin(np.isfinite(numbers).all(axis=1)))} (counted from 0)"
        )
    lengths = np.linalg.norm(numbers[:, 3:7], axis=1)
    if np.abs(lengths - 1.0).max() > 1e-2:
        raise UserError(
            f"{flag}: columns 3 to 6 of frame {int(np.argmax(np.abs(lengths - 1.0)))} (both counted from 0) are not a "
            "unit quaternion; normalize them"
        )
    numbers[:, 3:7] /= lengths[:, None]
    return numbers


def make_reference(robot: Robot, motions: list[Floats], fps: float, dt_s: float) -> Reference:
    """Resample motions to one frame per control step.

    Args:
        robot: The parts of the model that the motions drive.
        motions: The motions, (frames, 7 + k) each.
        fps: Frames per second of the motions.
        dt_s: Length of a control step. A motion's length is rounded to a whole number of control steps.
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
    # Velocities by central differences, except for the first frame, which has no frame before it
    around = [(max(i - 1, 0), min(i + 1, steps)) for i in range(steps)]
    qvel = np.stack([_difference(model, qpos[a], qpos[b], (b - a) * dt_s) for a, b in around])
    # Displacement (x, y, yaw) from the first pose to the last: first rotate by yaw, then translate
    first, last = qpos[0, robot.qpos[:7]], qpos[-1, robot.qpos[:7]]
    yaw = float(heading(torch.from_numpy(last[3:])) - heading(torch.from_numpy(first[3:])))
    cos, sin = np.cos(yaw), np.sin(yaw)
    x, y = first[:2]
    onward = np.zeros((steps, 3))
    onward[-1] = last[0] - (cos * x - sin * y), last[1] - (sin * x + cos * y), yaw
    return Reference(
        pose=qpos[:-1, robot.qpos],
        velocity=qvel[:, robot.qvel],
        sites=_sites(robot, qpos[:-1], qvel),
        next=np.append(np.arange(1, steps), 0),
        onward=onward,
    )


def _between(model: mujoco.MjModel, frames: Floats, at: float) -> Floats:
    """Interpolate between two frames; orientations rotate at a constant rate."""
    before = min(int(at), len(frames) - 2)
    pose = frames[before].copy()
    mujoco.mj_integratePos(model, pose, _difference(model, frames[before], frames[before + 1], 1.0), at - before)
    return pose


def _difference(model: mujoco.MjModel, before: Floats, after: Floats, time_s: float) -> Floats:
    velocity = np.zeros(model.nv)
    mujoco.mj_differentiatePos(model, velocity, time_s, before, after)
    return velocity


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
