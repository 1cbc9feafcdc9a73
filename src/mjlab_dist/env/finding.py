"""Selection of joints, bodies, sites and geoms of a scene by name, with the columns of joints in the state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import torch

from mjlab_dist.config import EnvConfig
from mjlab_dist.env.binding import CommandGroup, look_up
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.frames import Base, FrameKind, Frames, make_frames
from mjlab_dist.env.parameters import Parameters
from mjlab_dist.env.term import Command
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation
from mjlab_dist.sim.names import element_names, find_names
from mjlab_dist.sim.scene import declared_distances


class Distances(NamedTuple):
    """Distances between the surfaces of geoms, as views of MuJoCo's sensors.

    Like all sensor readings, they describe the state at the start of the last physics step.
    """

    names: tuple[str, ...]
    """Name of each of the k pairs of elements, as ``<element>:<other>``."""
    distance_m: torch.Tensor
    """Distances in m, negative if the geoms overlap, (num_envs, k)."""
    points_m: torch.Tensor
    """Closest points on the first and on the second element in the world frame, in m, (num_envs, k, 2, 3); 0 if the two
    elements are further apart than the maximum in the config."""


class Finder:
    """The methods of an env that find elements of the scene, commands and parameters by name.

    Patterns are regular expressions that match whole names. They match the elements of the given ``entity``, by their
    names without the entity's prefix. If ``entity`` is an empty string, patterns match the elements of the MJCF of
    ``sim.model``. If it is None, they match the full names, with prefixes, of the whole scene: ``.*`` selects the
    elements of all entities.
    """

    sim: Simulation
    device: str
    cfg: EnvConfig
    parameters: Parameters
    joints: Joints
    _commands: CommandGroup
    _bases: dict[str, Base]
    _frames: dict[tuple[FrameKind, tuple[int, ...]], Frames]

    def find_parameter(self, path: str) -> torch.Tensor:
        """Return a parameter that a curriculum changes in place, (k,) of float32; k is 1 for one number.

        Call this in the constructor of a curriculum whose :meth:`Curriculum.changes` returns the path. The term with
        this parameter reads the current value in every step.

        Args:
            path: Path of the parameter in the config, such as ``rewards.track.params.std_m_s``.

        Raises:
            UserError: If :meth:`Curriculum.changes` does not return the path.
        """
        return self.parameters.find(path)

    def command(self, name: str) -> torch.Tensor:
        """Return a command's value, (num_envs, k).

        Args:
            name: Its name in ``env.commands``.

        Raises:
            UserError: If there is no such command.
        """
        return self._commands.find(name).value

    def find_command(self, name: str) -> Command:
        """Return a command term, so that a curriculum can change its ranges.

        Args:
            name: Its name in ``env.commands``.

        Raises:
            UserError: If there is no such command.
        """
        return self._commands.find(name)

    def base(self, joint: str = "root") -> Base:
        """Return gravity, velocities and heading of a free-floating body.

        Args:
            joint: Name of the body's free joint. If the scene has no joint ``root`` and only one free joint, ``root``
                names this joint.

        Raises:
            UserError: If there is no such joint, or it is not free.
        """
        return look_up("free joint", self.joints.known(joint), self._bases)

    def find_joints(self, patterns: tuple[str, ...], entity: str | None = None) -> JointSelection:
        """Select hinge and slide joints.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no joint or is not a regular expression, or there is no such entity.
        """
        model, entities = self.sim.model, self.cfg.sim.entities
        names = element_names(model, "jnt", entity, entities)
        return select_joints(model, patterns, self.device, names)

    def find_bodies(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select bodies, and return their poses and velocities at their origins.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no body or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("body", patterns, entity)

    def find_sites(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select sites, and return their poses and velocities.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no site or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("site", patterns, entity)

    def find_geoms(self, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select geoms, and return their poses and velocities at their centers.

        Args:
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches no geom or is not a regular expression, or there is no such entity.
        """
        return self.find_frames("geom", patterns, entity)

    def find_distances(self, name: str) -> Distances:
        """Return distances that the config declares, and the closest points.

        Args:
            name: Their name in ``sim.distances``.

        Raises:
            UserError: If the config declares none with this name.
        """
        look_up("sim.distances", name, self.cfg.sim.distances)
        names, distances, points = declared_distances(self.sim.model, name)
        data = self.sim.view("sensordata")
        return Distances(tuple(names), data[:, distances], data[:, points].unflatten(1, (len(names), 2, 3)))

    def find_frames(self, kind: FrameKind, patterns: tuple[str, ...], entity: str | None = None) -> Frames:
        """Select bodies, sites or geoms, and return their poses and velocities.

        Args:
            kind: Kind of the elements.
            patterns: Regular expressions.
            entity: See :class:`Finder`.

        Raises:
            UserError: If a pattern matches nothing or is not a regular expression, or there is no such entity.
        """
        names = element_names(self.sim.model, kind, entity, self.cfg.sim.entities)
        ids = tuple(find_names("bodies" if kind == "body" else f"{kind}s", patterns, names))
        if (kind, ids) not in self._frames:
            self._frames[kind, ids] = make_frames(self.sim, kind, ids)
        return self._frames[kind, ids]


class Joint(NamedTuple):
    """Columns of a joint in the state."""

    qpos: slice
    """Columns of ``qpos``."""
    qvel: slice
    """Columns of ``qvel``."""

    @property
    def is_free(self) -> bool:
        """Whether the joint is free; its positions are then a point and a quaternion."""
        return self.qpos.stop - self.qpos.start == 7


class Joints(dict[str, Joint]):
    """Joints by name; an unknown name raises :class:`UserError`."""

    def __missing__(self, name: str) -> Joint:
        return self[self.known(name)]

    def known(self, name: str) -> str:
        """Return a name. If it is ``root``, the default of many terms, and unknown, return that of the only free joint.

        Args:
            name: The name.

        Raises:
            UserError: If there is no such joint.
        """
        free = [one for one, joint in self.items() if joint.is_free]
        if name not in self and not (name == "root" and len(free) == 1):
            raise UserError(f"joint {name}: does not exist; the model has {', '.join(self)}")
        return name if name in self else free[0]


class JointSelection(NamedTuple):
    """A selection of hinge or slide joints."""

    names: tuple[str, ...]
    """Names of the joints, in model order."""
    qpos: Columns
    """Columns of the joints in ``qpos``."""
    qvel: Columns
    """Columns of the joints in ``qvel``."""
    lower: torch.Tensor
    """Lower limits in rad or m, (joints,); -inf without limits."""
    upper: torch.Tensor
    """Upper limits in rad or m, (joints,); inf without limits."""


def all_joints(model: mujoco.MjModel) -> Joints:
    """Return all joints of a model, by name.

    Args:
        model: The MuJoCo model.
    """
    joints = Joints()
    for i in range(model.njnt):
        joint = model.joint(i)
        qpos, qvel = int(joint.qposadr[0]), int(joint.dofadr[0])
        joints[joint.name] = Joint(slice(qpos, qpos + len(joint.qpos0)), slice(qvel, qvel + len(joint.damping)))
    return joints


def select_joints(
    model: mujoco.MjModel, patterns: tuple[str, ...], device: str, names: Sequence[str | None]
) -> JointSelection:
    """Select hinge and slide joints by regular expressions that match their whole names.

    Args:
        model: The MuJoCo model.
        patterns: Regular expressions.
        device: Device of the tensors.
        names: For each joint of the model, the name that the patterns match; None for a joint that cannot be selected.

    Raises:
        UserError: If a pattern matches no joint or is not a regular expression.
    """
    simple = [i for i in range(model.njnt) if model.jnt_type[i] >= int(mujoco.mjtJoint.mjJNT_SLIDE)]
    ids = [simple[i] for i in find_names("joints", patterns, [names[i] for i in simple])]
    limits = [tuple(model.jnt_range[i]) if model.jnt_limited[i] else (-torch.inf, torch.inf) for i in ids]
    lower, upper = torch.tensor(limits, dtype=torch.float32, device=device).unbind(dim=1)
    return JointSelection(
        tuple(model.joint(i).name for i in ids),
        Columns([int(model.jnt_qposadr[i]) for i in ids], device),
        Columns([int(model.jnt_dofadr[i]) for i in ids], device),
        lower,
        upper,
    )
