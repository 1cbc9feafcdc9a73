"""Motion imitation for a floating base: a command that plays reference motions, and terms that use it.

The rewards are those of Peng et al. 2020, "Learning Agile Robotic Locomotion Skills by Imitating Animals"
(arXiv:2004.00784, section on motion imitation), with the gains of the authors' implementation. The idea
of starting episodes in the middle of a motion is from Peng et al. 2018, "DeepMimic" (arXiv:1804.02717, section 6.1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import Columns, write_rows
from mjlab_dist.env.term import Command
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.data_files import Robot, make_reference, read_motions
from mjlab_dist.mdp.rotation import angle_between, conjugate, from_euler, half_angle, multiply, rotate, rotate_inverse
from mjlab_dist.sim.names import element_names, exactly, find_names, local_name

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env
    from mjlab_dist.sim import Limits


class Motion(Command):
    """Target state of the robot at the end of the current step, from reference motions that repeat.

    When a motion ends, it restarts at the place and with the heading that it has reached, so one cycle of a gait is
    enough. The task needs the event :func:`start_in_motion`, which starts episodes in a motion.

    The motion file is an npz file with ``fps`` (frames per second), ``joints`` (names of k hinge or slide joints), and
    one array (frames, 7 + k) per motion: the robot's position in m, its unit quaternion (w, x, y, z), and the joint
    positions in rad or m. Frames are interpolated to control steps.

    Attributes:
        value: Target position, orientation and joint positions, (num_envs, 7 + k).
        velocity: Target linear velocity in the world frame, angular velocity in the body's frame, and joint velocities,
            (num_envs, 6 + k).
        sites: Target positions of the sites in the body's frame, in m, (num_envs, sites, 3). They are the targets for
            the start of the last substep, because MuJoCo computes sites at that time.
        root: The robot's free joint.
        joints: The joints, in the order of their positions in ``value``.
    """

    def __init__(
        self,
        env: Env,
        *,
        file: str,
        motions: tuple[str, ...] = (".*",),
        sites: tuple[str, ...] = (),
        joint: str = "root",
        entity: str | None = None,
    ) -> None:
        """Read the motions, and resample them to control steps.

        Args:
            env: The envs.
            file: Path of the npz file, or ``package.module:file``.
            motions: Regular expressions that match the names of the motions to play.
            sites: Regular expressions that match the names of the sites to track, such as feet.
            joint: The robot's free joint.
            entity: Entity of the robot. If given, names of joints and sites are without the prefix of the entity.

        Raises:
            UserError: If there is no such file, motion, joint or site, or the file is not a motion file.
        """
        model = env.sim.model
        # Motions, with the joints in the order of the model
        found = read_motions(file)
        self.root = env.joints[joint]
        self.joints = env.find_joints(tuple(map(exactly, found.joints)), entity)
        local = [local_name(name, entity, env.cfg.sim.entities) for name in self.joints.names]
        order = [*range(7), *(7 + found.joints.index(name) for name in local if name is not None)]
        names = list(found.motions)
        chosen = [found.motions[names[i]][:, order] for i in find_names(f"motions {file}", motions, names)]
        # Robot and sites
        site_names = element_names(model, "site", entity, env.cfg.sim.entities)
        ids = find_names("sites", sites, site_names) if sites else []
        self._body = int(model.joint(env.joints.known(joint)).bodyid[0])
        robot = Robot(
            model,
            (*_ids(self.root.qpos), *self.joints.qpos.ids),
            (*_ids(self.root.qvel), *self.joints.qvel.ids),
            self._body,
            tuple(ids),
        )
        super().__init__(env, [], 7 + len(found.joints), (math.inf, math.inf))
        # Reference states of all frames
        reference = make_reference(robot, chosen, found.fps, env.step_dt_s)
        self._pose, self._velocity, self._sites, self._onward = (
            torch.tensor(part, dtype=torch.float32, device=env.device)
            for part in (reference.pose, reference.velocity, reference.sites, reference.onward)
        )
        self._next = torch.tensor(reference.next, device=env.device)
        self._site_columns = Columns(ids, env.device)
        # State per env
        self.velocity = torch.zeros(env.num_envs, self._velocity.shape[1], device=env.device)
        self.sites = torch.zeros(env.num_envs, len(ids), 3, device=env.device)
        self._frame = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        # Pose of the motion's coordinate system in the world: x, y, yaw
        self._anchor = torch.zeros(env.num_envs, 3, device=env.device)

    def start(self, env: Env, mask: torch.Tensor) -> None:
        """Set the robots' states to random frames of the motions, at their env's origin. All frames are equally likely.

        Args:
            env: The envs.
            mask: Envs to start, (num_envs,) of bool.
        """
        frame = torch.randint_like(self._frame, len(self._next))
        self._frame.copy_(torch.where(mask, frame, self._frame))
        over_ground = self._pose.index_select(0, frame)[:, :2]
        write_rows(self._anchor[:, :2], mask, env.origins[:, :2] - over_ground)
        write_rows(self._anchor[:, 2], mask, 0.0)
        self._look(env)
        chosen = mask.unsqueeze(1)
        for state, root, joints, values in (
            (env.sim.qpos, self.root.qpos, self.joints.qpos, self.value),
            (env.sim.qvel, self.root.qvel, self.joints.qvel, self.velocity),
        ):
            of_root = len(_ids(root))
            state[:, root] = torch.where(chosen, values[:, :of_root], state[:, root])
            joints.write(state, mask, values[:, of_root:])

    def resample(self, env: Env) -> None:
        pass  # the event start_in_motion chooses the frame

    def follow(self, env: Env) -> None:
        x, y, yaw = self._onward.index_select(0, self._frame).unbind(dim=1)
        cos, sin = torch.cos(self._anchor[:, 2]), torch.sin(self._anchor[:, 2])
        self._anchor += torch.stack([cos * x - sin * y, sin * x + cos * y, yaw], dim=1)
        self._frame.copy_(self._next.index_select(0, self._frame))
        self._look(env)

    def body_sites(self, env: Env) -> torch.Tensor:
        """Return the sites' positions in the body's frame, as MuJoCo last computed them, in m, (num_envs, sites, 3).

        Args:
            env: The envs.
        """
        offset = self._site_columns.of(env.sim.view("site_xpos")) - env.sim.view("xpos")[:, self._body].unsqueeze(1)
        return rotate_inverse(env.sim.view("xquat")[:, self._body].unsqueeze(1).expand(-1, offset.shape[1], -1), offset)

    def state(self) -> dict[str, torch.Tensor]:
        return {
            "frame": self._frame,
            "anchor": self._anchor,
            "value": self.value,
            "velocity": self.velocity,
            "sites": self.sites,
        }

    def limits(self) -> dict[str, Limits]:
        return {"frame": (0, len(self._next) - 1)}

    def _look(self, env: Env) -> None:
        """Compute the targets from the current frame of the motion and the pose of the motion's coordinate system."""
        pose, velocity = self._pose.index_select(0, self._frame), self._velocity.index_select(0, self._frame)
        level = torch.zeros_like(self._anchor[:, 2])
        turn = from_euler(level, level, self._anchor[:, 2])
        origin = torch.cat([self._anchor[:, :2], env.origins[:, 2:]], dim=1)
        position, orientation = origin + rotate(turn, pose[:, :3]), multiply(turn, pose[:, 3:7])
        self.value.copy_(torch.cat([position, orientation, pose[:, 7:]], dim=1))
        self.velocity.copy_(torch.cat([rotate(turn, velocity[:, :3]), velocity[:, 3:]], dim=1))
        self.sites.copy_(self._sites.index_select(0, self._frame))


def _ids(columns: slice) -> range:
    return range(columns.start, columns.stop)


def _motion(env: Env, name: str) -> Motion:
    found = env.find_command(name)
    if not isinstance(found, Motion):
        raise UserError(f"command {name}: is a {type(found).__name__}; give the name of a Motion command")
    return found


def start_in_motion(env: Env, mask: torch.Tensor, command: str) -> None:
    """Event: start episodes at random frames of a motion command, with the positions and velocities of these frames."""
    _motion(env, command).start(env, mask)


# Observations


def joint_targets(env: Env, command: str) -> torch.Tensor:
    """Return the joints' target positions after the next step, minus start positions, in rad or m; (num_envs, k)."""
    motion = _motion(env, command)
    return motion.value[:, 7:] - motion.joints.qpos.of(env.reference.qpos)


def joint_target_velocities(env: Env, command: str) -> torch.Tensor:
    """Return the joints' target velocities after the next step, in rad/s or m/s; (num_envs, k)."""
    return _motion(env, command).velocity[:, 6:]


def root_target_velocity(env: Env, command: str) -> torch.Tensor:
    """Return the base's target velocity after the next step, in the frame of the target pose; (num_envs, 6).

    The linear velocity is in m/s, the angular velocity in rad/s.
    """
    motion = _motion(env, command)
    linear = rotate_inverse(motion.value[:, 3:7], motion.velocity[:, :3])
    return torch.cat([linear, motion.velocity[:, 3:6]], dim=1)


def root_error(env: Env, command: str) -> torch.Tensor:
    """Return the offset from the base's pose to its target after the next step, in the base's frame; (num_envs, 6).

    The offset consists of the position in m and of the rotation as axis times angle in rad.
    """
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    turn = multiply(conjugate(pose[:, 3:]), motion.value[:, 3:7])
    sine = turn[:, 1:].norm(dim=1, keepdim=True)
    # angle / sin(angle / 2), which is 2 at 0. The sign selects the shorter of the two rotations.
    angle = 2.0 * half_angle(sine, turn[:, :1].abs())
    scale = torch.where(sine > 1e-6, angle / sine.clamp_min(1e-6), 2.0) * torch.sign(turn[:, :1])
    offset = rotate_inverse(pose[:, 3:], motion.value[:, :3] - pose[:, :3])
    return torch.cat([offset, scale * turn[:, 1:]], dim=1)


# Rewards, each at most 1


def imitate_joints(env: Env, command: str, gain: float = 5.0) -> torch.Tensor:
    """Return exp(-gain * sum of squared joint position errors), with errors in rad or m."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.value[:, 7:] - motion.joints.qpos.of(env.sim.qpos)).square().sum(dim=1))


def imitate_joint_velocities(env: Env, command: str, gain: float = 0.1) -> torch.Tensor:
    """Return exp(-gain * sum of squared joint velocity errors), with errors in rad/s or m/s."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.velocity[:, 6:] - motion.joints.qvel.of(env.sim.qvel)).square().sum(dim=1))


def imitate_sites(env: Env, command: str, gain: float = 40.0) -> torch.Tensor:
    """Return exp(-gain * sum of squared site position errors), with errors in m, in the base's frame."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.sites - motion.body_sites(env)).square().sum(dim=(1, 2)))


def imitate_root_pose(env: Env, command: str, gain: float = 20.0, turn_gain: float = 10.0) -> torch.Tensor:
    """Return exp(-gain * distance^2 - turn_gain * angle^2), with the base's pose errors in m and rad."""
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    distance = (motion.value[:, :3] - pose[:, :3]).square().sum(dim=1)
    return torch.exp(-gain * distance - turn_gain * angle_between(motion.value[:, 3:7], pose[:, 3:]).square())


def imitate_root_velocity(env: Env, command: str, gain: float = 2.0, turn_gain: float = 0.2) -> torch.Tensor:
    """Return exp(-gain * linear^2 - turn_gain * angular^2), with the base's velocity errors in m/s and rad/s."""
    motion = _motion(env, command)
    error = (motion.velocity[:, :6] - env.sim.qvel[:, motion.root.qvel]).square()
    return torch.exp(-gain * error[:, :3].sum(dim=1) - turn_gain * error[:, 3:].sum(dim=1))


# Termination


def lost(env: Env, command: str, max_m: float, max_rad: float) -> torch.Tensor:
    """Return whether the base's pose error exceeds max_m or max_rad."""
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    far = (motion.value[:, :3] - pose[:, :3]).norm(dim=1) > max_m
    return far | (angle_between(motion.value[:, 3:7], pose[:, 3:]) > max_rad)
