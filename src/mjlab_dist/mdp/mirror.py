"""Mirror images of observations and actions, in which left and right are exchanged, for learning from symmetry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mujoco
import numpy as np
import torch
from tensordict import TensorDict

from mjlab_dist.env.binding import import_term
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import FunctionT
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mjlab_dist.config import ObservationConfig
    from mjlab_dist.env.env import Env
    from mjlab_dist.env.frames import FrameKind

Image = Sequence[tuple[int, int]]
"""Mirror image of a row of numbers: for each number, the index of the number that takes its place, and its sign."""

SAME: Image = ((0, 1),)
"""Image of one number that does not change, such as a height."""

VECTOR: Image = ((0, 1), (1, -1), (2, 1))
"""Image of a vector in the robot's frame, such as a velocity."""

ROTATION: Image = ((0, -1), (1, 1), (2, -1))
"""Image of a rotation in the robot's frame, such as an angular velocity."""

TOLERANCE = 0.03
"""Maximum distance between a point and the mirror image of another point, as a share of the robot's size; for
directions, the maximum distance of unit vectors; for the start state, the maximum difference in rad or m."""


def mirrored(image: Image | Callable[..., Image]) -> Callable[[FunctionT], FunctionT]:
    """Decorator for an observation function that sets its mirror image.

    A class has a method ``mirrored(self, mirror)`` instead, which returns the image.

    Args:
        image: The image; or, if it depends on the robot, a function of the :class:`Mirror` and the parameters of the
            observation that returns the image.
    """

    def add(function: FunctionT) -> FunctionT:
        vars(function)["mirrored"] = image
        return function

    return add


class Mirror:
    """Mirror images of a robot's joints and other elements.

    The mirror is the plane through the x axis and the z axis of the frame of the robot's first body. An element is the
    image of the element at the mirrored place in the start state.

    Attributes:
        env: The envs.
        actions: Image of the actions.
    """

    def __init__(self, env: Env) -> None:
        """Find the image of the actions.

        Raises:
            UserError: If an action drives no joint, or the robot or its actions are not symmetric.
        """
        self.env = env
        model = env.sim.model
        joints, scales, offsets = _driven(env)
        root = int(model.body_rootid[model.jnt_bodyid[joints[0]]])
        self._data = in_frame_of(model, env.reference.qpos[0].double().cpu().numpy(), root)
        self.actions = joint_images(model, self._data, joints)
        numbers = zip(scales, offsets, strict=True)
        for (other, sign), name, (scale, offset) in zip(self.actions, env.action_names, numbers, strict=True):
            if abs(scale - scales[other]) > 1e-6 or abs(offset - sign * offsets[other]) > TOLERANCE:
                raise UserError(f"mirror image: action {name}: its scale or offset differs from that of its image")

    def joints(self, names: Sequence[str]) -> Image:
        """Return the image of positions or velocities of hinge and slide joints."""
        return joint_images(self.env.sim.model, self._data, [self.env.sim.model.joint(name).id for name in names])

    def places(self, kind: FrameKind, names: Sequence[str]) -> Image:
        """Return the image of one number for each of some bodies, sites or geoms."""
        return place_images(np.array([getattr(self._data, kind)(name).xpos for name in names]))

    def sensors(self, addresses: Sequence[int]) -> Image:
        """Return the image of one number for each of some sensors of MuJoCo, with their addresses in sensordata."""
        model, data = self.env.sim.model, self._data
        places = {int(mujoco.mjtObj.mjOBJ_GEOM): data.geom_xpos, int(mujoco.mjtObj.mjOBJ_SITE): data.site_xpos}
        sensors = [model.sensor_adr.tolist().index(address) for address in addresses]
        found = [places.get(int(model.sensor_objtype[i]), data.xpos)[model.sensor_objid[i]] for i in sensors]
        return place_images(np.array(found))

    def observation(self, where: str, config: ObservationConfig) -> Image:
        """Return the image of an observation, without its history.

        Raises:
            UserError: If it is not known.
        """
        flag, term = f"--env.{where}.func", self.env.terms.get(where)
        try:
            if term is not None:
                return self.term(term)
            return self.term(import_term(flag, config.func), **config.params)
        except UserError as error:
            raise UserError(
                f"{flag} {config.func}: {error}; see docs/task-reference.md, or train with "
                "--agent.symmetry.use-data-augmentation False"
            ) from error

    def term(self, term: object, **params: object) -> Image:
        """Return the image of the values of a term, a command or a sensor; ``params`` are those of a function.

        Raises:
            UserError: If it is not known.
        """
        image: Image | Callable[..., Image] | None = getattr(term, "mirrored", None)
        if image is None:
            name = getattr(term, "__name__", type(term).__name__)
            raise UserError(f"the mirror image of {name} is not known")
        return image(self, **params) if callable(image) else image


def _driven(env: Env) -> tuple[list[int], list[float], list[float]]:
    """Return the joint, scale and offset of each action."""
    model = env.sim.model
    joints: list[int] = []
    scales: list[float] = []
    offsets: list[float] = []
    for action in env.action_terms:
        columns = action.joints(env).qpos.ids
        if len(columns) != len(action.names):
            raise UserError(f"mirror image: actions {action.block.name}: there is not one for each joint")
        joints += [model.jnt_qposadr.tolist().index(column) for column in columns]
        scales += action.scale.tolist()
        offsets += action.offset.tolist()
    return joints, scales, offsets


def in_frame_of(model: mujoco.MjModel, qpos: NDArray[np.float64], root: int) -> mujoco.MjData:
    """Return a pose whose world frame is that of a body that is attached to the world."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    origin, rotation = data.xpos[root].copy(), data.xmat[root].reshape(3, 3).copy()
    for places in (data.xpos, data.geom_xpos, data.site_xpos, data.xanchor):
        places[:] = (places - origin) @ rotation
    data.xaxis[:] = data.xaxis @ rotation
    return data


def joint_images(model: mujoco.MjModel, data: mujoco.MjData, joints: Sequence[int]) -> Image:
    """Return the image of the positions of hinge and slide joints relative to the start state.

    Args:
        model: The model.
        data: The start state, see :func:`in_frame_of`.
        joints: Ids of the joints.

    Raises:
        UserError: If a joint has no image, or the start state is not symmetric.
    """
    ids = list(joints)
    is_hinge = model.jnt_type[ids] == int(mujoco.mjtJoint.mjJNT_HINGE)
    size_m = _size_m(data.xanchor[ids])
    # The mirror image of an axis of rotation points the other way
    axes = data.xaxis[ids] * np.array([1.0, -1.0, 1.0]) * np.where(is_hinge, -1.0, 1.0)[:, None]
    along = axes @ data.xaxis[ids].T
    apart = _apart(data.xanchor[ids]) / size_m + np.sqrt(np.maximum(2.0 - 2.0 * np.abs(along), 0.0))
    apart[is_hinge[:, None] != is_hinge] = np.inf
    home = data.qpos[model.jnt_qposadr[ids]]
    images: list[tuple[int, int]] = []
    for i, joint in enumerate(ids):
        other = int(apart[i].argmin())
        sign = 1 if along[i, other] > 0.0 else -1
        if apart[i, other] > TOLERANCE:
            raise UserError(f"mirror image: joint {model.joint(joint).name}: there is no joint at the mirrored place")
        if abs(home[i] - sign * home[other]) > TOLERANCE:
            one, two = model.joint(joint).name, model.joint(ids[other]).name
            raise UserError(f"mirror image: joints {one} and {two}: their positions in the start state differ")
        images.append((other, sign))
    return images


def place_images(points: NDArray[np.float64]) -> Image:
    """Return the image of one number for each of some points, (k, 3).

    Raises:
        UserError: If a point has no image.
    """
    apart = _apart(points)
    if (apart.min(axis=1) > TOLERANCE * _size_m(points)).any():
        raise UserError("mirror image: elements of an observation have no elements at the mirrored places")
    return [(int(other), 1) for other in apart.argmin(axis=1)]


def _apart(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distances of the mirror images of points from all points, (k, k)."""
    return np.linalg.norm((points * [1.0, -1.0, 1.0])[:, None] - points, axis=2)


def _size_m(points: NDArray[np.float64]) -> float:
    return max(float(np.linalg.norm(points, axis=1).max()), 1e-6)


class WithMirrored:
    """For --agent.symmetry: appends samples in which left and right are exchanged.

    Attributes:
        mirror: The mirror images of the robot's joints and other elements.
    """

    def __init__(self, env: Env) -> None:
        """Find the mirror images of actions and observations.

        Raises:
            UserError: If the mirror image of one is not known, or the robot is not symmetric.
        """
        mirror = self.mirror = Mirror(env)
        self._actions = _selected(mirror.actions, env.device)
        self._groups: dict[str, tuple[Columns, torch.Tensor]] = {}
        for group, columns in env.observation_columns().items():
            found: list[tuple[int, int]] = []
            for name, at in columns.items():
                image = mirror.observation(f"observations.{group}.{name}", env.cfg.observations[group][name])
                # A term with a history has a block of columns per step
                found += [(start + i, sign) for start in range(at.start, at.stop, len(image)) for i, sign in image]
            self._groups[group] = _selected(found, env.device)

    def __call__(
        self,
        env: Env,  # noqa: ARG002 (rsl_rl passes the env)
        obs: TensorDict | None,
        actions: torch.Tensor | None,
    ) -> tuple[TensorDict | None, torch.Tensor | None]:
        """Return the given rows, followed by their mirror images.

        Args:
            env: The envs.
            obs: Observations, (samples, ...) for each group; None for actions alone.
            actions: Actions, (samples, num_actions); None for observations alone.
        """
        if obs is not None:
            both = {name: _appended(obs[name], *selected) for name, selected in self._groups.items()}
            obs = TensorDict(both, batch_size=[2 * len(obs)])
        return obs, None if actions is None else _appended(actions, *self._actions)


def with_mirrored(rows: torch.Tensor, image: Image) -> torch.Tensor:
    """Return rows of numbers, (n, k), followed by their mirror images, (2 * n, k)."""
    return _appended(rows, *_selected(image, str(rows.device)))


def _selected(image: Image, device: str) -> tuple[Columns, torch.Tensor]:
    indices, signs = zip(*image, strict=True)
    return Columns(indices, device), torch.tensor(signs, dtype=torch.float32, device=device)


def _appended(rows: torch.Tensor, columns: Columns, signs: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows, columns.of(rows) * signs])
