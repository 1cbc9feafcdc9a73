"""Joints of an MJCF: the driven joints, and the free joint of a floating robot."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mujoco


def find_free_joint(model: mujoco.MjModel) -> int | None:
    """Return the free joint with the most driven joints in its tree; None if there is none.

    Free joints of trees without driven joints, such as that of a cube, do not count.

    Args:
        model: The MuJoCo model.
    """
    import mujoco

    trees = Counter(root_body(model, i) for i in driven_joints(model, None))
    free = np.flatnonzero(model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)).tolist()
    return max((i for i in free if trees[root_body(model, i)]), key=lambda i: trees[root_body(model, i)], default=None)


def driven_joints(model: mujoco.MjModel, free: int | None) -> list[int]:
    """Return the joints with an actuator; if there is none, all hinge and slide joints of the robot.

    Args:
        model: The MuJoCo model.
        free: The free joint of a floating robot.
    """
    driven = {joint for i in range(model.nu) if (joint := actuated_joint(model, i)) is not None}
    if not driven:
        driven = {i for i in simple_joints(model) if free is None or root_body(model, i) == root_body(model, free)}
    return sorted(driven)


def actuated_joint(model: mujoco.MjModel, actuator: int) -> int | None:
    """Return the hinge or slide joint that an actuator drives; None if it drives something else.

    Args:
        model: The MuJoCo model.
        actuator: The actuator.
    """
    import mujoco

    if not np.isin(model.actuator_trntype[actuator], (mujoco.mjtTrn.mjTRN_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT)):
        return None
    joint = int(model.actuator_trnid[actuator, 0])
    return joint if joint in simple_joints(model) else None


def simple_joints(model: mujoco.MjModel) -> list[int]:
    """Return all hinge and slide joints.

    Args:
        model: The MuJoCo model.
    """
    import mujoco

    return np.flatnonzero(np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE))).tolist()


def is_hinge(model: mujoco.MjModel, joint: int) -> bool:
    """Return whether a joint is a hinge.

    Args:
        model: The MuJoCo model.
        joint: The joint.
    """
    import mujoco

    return bool(model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_HINGE)


def root_body(model: mujoco.MjModel, joint: int) -> int:
    """Return the root body of a joint's tree.

    Args:
        model: The MuJoCo model.
        joint: The joint.
    """
    return int(model.body_rootid[model.jnt_bodyid[joint]])
