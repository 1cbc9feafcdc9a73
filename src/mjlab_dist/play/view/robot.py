"""Find the parts of a model that belong to the robot."""

from __future__ import annotations

from typing import NamedTuple

import mujoco

from mjlab_dist.env.joints import Joint


class Robot(NamedTuple):
    """The tree of bodies that actuators move; objects and markers are not part of it."""

    # Id of the body that the camera follows: the first movable body of the tree
    body: int
    # Columns of qpos and qvel of a floating base's free joint; None for a fixed robot
    root: Joint | None
    # Columns of qvel of all joints of the robot
    joints: list[int]

    @classmethod
    def of(cls, model: mujoco.MjModel) -> Robot:
        """Find the robot of a model: the tree that the first joint actuator moves, or else that of the first joint."""
        trees = [int(model.body_rootid[body]) for body in model.jnt_bodyid]
        joint_transmission = int(mujoco.mjtTrn.mjTRN_JOINT)
        driven = [
            int(model.actuator_trnid[i, 0]) for i in range(model.nu) if model.actuator_trntype[i] == joint_transmission
        ]
        tree = trees[driven[0] if driven else 0]
        own = [joint for joint, root in enumerate(trees) if root == tree]
        is_free = model.jnt_type[own[0]] == mujoco.mjtJoint.mjJNT_FREE
        root = None
        if is_free:
            qpos, qvel = int(model.jnt_qposadr[own[0]]), int(model.jnt_dofadr[own[0]])
            root = Joint(slice(qpos, qpos + 7), slice(qvel, qvel + 6))
        bodies = {int(model.jnt_bodyid[joint]) for joint in own}
        return cls(min(bodies), root, [dof for dof in range(model.nv) if int(model.dof_bodyid[dof]) in bodies])
