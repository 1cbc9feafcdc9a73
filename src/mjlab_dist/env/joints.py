"""Columns of joints in the state, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import torch

from mjlab_dist.env.columns import Columns
from mjlab_dist.errors import UserError
from mjlab_dist.sim.names import find_names


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
