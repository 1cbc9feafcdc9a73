"""Reference motions that a free-floating robot imitates: the command that plays them, start states from them, and terms about them.

Rewards are those of Peng et al. 2020, "Learning Agile Robotic Locomotion Skills by Imitating Animals" (arXiv:2004.00784, on motion
imitation; gains as in the authors' implementation). Starting in the middle of a motion is from Peng et al. 2018, "DeepMimic"
(arXiv:1804.02717, section 6.1).
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import Columns, find_names, write_rows
from mjlab_dist.env.term import Command
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.motion_file import Robot, make_reference, read_motions
from mjlab_dist.mdp.rotation import angle_between, conjugate, from_euler, multiply, rotate, rotate_inverse

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class Motion(Command):
    """Where a robot is to be at the end of the present step, by motions that are played over and over.

    A motion that has ended starts again from where it has led, so that one cycle of a gait walks on for ever. Episodes have to be
    started in it by :func:`start_in_motion`.

    The file is an npz: ``fps``, frames a second; ``joints``, names of k hinge or slide joints; and per motion an array
    (frames, 7 + k) of the robot's position in m, its unit quaternion (w, x, y, z), and the joints' positions in rad or m. Frames
    are interpolated to control steps.

    Attributes:
        value: Position, orientation, and positions of the joints, (num_envs, 7 + k).
        velocity: Linear in the world's frame, angular in the body's, and of the joints, (num_envs, 6 + k).
        sites: Where sites are to be in the body's frame, one substep earlier, when MuJoCo last computes them; in m,
            (num_envs, sites, 3).
        root: The robot's free joint.
        joints: The joints, in the order of the value.
    """

    def __init__(
        self,
        env: Env,
        *,
        file: str,
        motions: tuple[str, ...] = (".*",),
        sites: tuple[str, ...] = (),
        joint: str = "root",
    ) -> None:
        """Read motions, and prepare every control step of them.

        Args:
            env: The envs.
            file: The npz: its path, or ``package.module:file``.
            motions: Regular expressions of the motions that are played.
            sites: Regular expressions of the MJCF's sites that are to move along, such as feet.
            joint: The robot's free joint.

        Raises:
            UserError: If there is no such file, motion, joint or site, or the file holds something else.
        """
        model = env.sim.model
        found = read_motions(file)
        self.root = env.joints[joint]
        self.joints = env.find_joints(tuple(map(re.escape, found.joints)))
        order = [*range(7), *(7 + found.joints.index(name) for name in self.joints.names)]
        names = list(found.motions)
        chosen = [found.motions[names[i]][:, order] for i in find_names(f"motions {file}", motions, names)]
        ids = find_names("sites", sites, [model.site(i).name for i in range(model.nsite)]) if sites else []
        self._body = int(model.joint(joint).bodyid[0])
        robot = Robot(
            model,
            (*_ids(self.root.qpos), *self.joints.qpos.ids),
            (*_ids(self.root.qvel), *self.joints.qvel.ids),
            self._body,
            tuple(ids),
        )
        super().__init__(env, [], 7 + len(found.joints), (math.inf, math.inf))
        reference = make_reference(robot, chosen, found.fps, env.step_dt_s)
        self._pose, self._velocity, self._sites, self._onward = (
            torch.tensor(part, dtype=torch.float32, device=env.device)
            for part in (reference.pose, reference.velocity, reference.sites, reference.onward)
        )
        self._next = torch.tensor(reference.next, device=env.device)
        self._site_columns = Columns(ids, env.device)
        self.velocity = torch.zeros(env.num_envs, self._velocity.shape[1], device=env.device)
        self.sites = torch.zeros(env.num_envs, len(ids), 3, device=env.device)
        self._frame = torch.zeros(env.num_envs, dtype=torch.long, device=env.device)
        # Where the motion's own frame lies in the world: x, y, yaw.
        self._anchor = torch.zeros(env.num_envs, 3, device=env.device)

    def start(self, env: Env, mask: torch.Tensor) -> None:
        """Put robots anywhere into a motion, over their env's origin; every control step of it is as likely.

        Args:
            env: The envs.
            mask: Which, (num_envs,) of bool.
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

    def update(self, env: Env) -> None:
        """Let a step's time pass.

        Args:
            env: The envs, after resets.
        """
        x, y, yaw = self._onward.index_select(0, self._frame).unbind(dim=1)
        cos, sin = torch.cos(self._anchor[:, 2]), torch.sin(self._anchor[:, 2])
        self._anchor += torch.stack([cos * x - sin * y, sin * x + cos * y, yaw], dim=1)
        self._frame.copy_(self._next.index_select(0, self._frame))
        self._look(env)

    def body_sites(self, env: Env) -> torch.Tensor:
        """Where the sites are in the body's frame, in m, (num_envs, sites, 3), as MuJoCo last computed them.

        Args:
            env: The envs.
        """
        offset = self._site_columns.of(env.sim.view("site_xpos")) - env.sim.view("xpos")[:, self._body].unsqueeze(1)
        return rotate_inverse(env.sim.view("xquat")[:, self._body].unsqueeze(1).expand(-1, offset.shape[1], -1), offset)

    def state(self) -> dict[str, torch.Tensor]:
        """Which frame is played where, and what follows from it."""
        return {
            "frame": self._frame,
            "anchor": self._anchor,
            "value": self.value,
            "velocity": self.velocity,
            "sites": self.sites,
        }

    def _look(self, env: Env) -> None:
        """Put the frame that is played into the world."""
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
        raise UserError(f"command {name}: is a {type(found).__name__}, and a Motion is wanted")
    return found


def start_in_motion(env: Env, mask: torch.Tensor, command: str) -> None:
    """Start episodes anywhere in the motions of a command, with their positions and velocities (an event)."""
    _motion(env, command).start(env, mask)


# Observations


def joint_targets(env: Env, command: str) -> torch.Tensor:
    """Positions that joints are to have after the next step, relative to the start state, in rad or m; (num_envs, k)."""
    motion = _motion(env, command)
    return motion.value[:, 7:] - motion.joints.qpos.of(env.reference.qpos)


def joint_target_velocities(env: Env, command: str) -> torch.Tensor:
    """Velocities that joints are to have after the next step, in rad/s or m/s; (num_envs, k)."""
    return _motion(env, command).velocity[:, 6:]


def root_target_velocity(env: Env, command: str) -> torch.Tensor:
    """Velocity that the body is to have after the next step, in the frame it is to have then: m/s, rad/s; (num_envs, 6)."""
    motion = _motion(env, command)
    linear = rotate_inverse(motion.value[:, 3:7], motion.velocity[:, :3])
    return torch.cat([linear, motion.velocity[:, 3:6]], dim=1)


def root_error(env: Env, command: str) -> torch.Tensor:
    """From where the body is to where it is to be after the next step, in its own frame: m, rad (axis times angle); (num_envs, 6)."""
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    turn = multiply(conjugate(pose[:, 3:]), motion.value[:, 3:7])
    sine = turn[:, 1:].norm(dim=1, keepdim=True)
    # 2 asin(s) / s, which is 2 at 0; the sign makes it the shorter of the two turns.
    angle = 2.0 * torch.atan2(sine, turn[:, :1].abs())
    scale = torch.where(sine > 1e-6, angle / sine.clamp_min(1e-6), 2.0) * torch.sign(turn[:, :1])
    offset = rotate_inverse(pose[:, 3:], motion.value[:, :3] - pose[:, :3])
    return torch.cat([offset, scale * turn[:, 1:]], dim=1)


# Rewards, at most 1 each


def imitate_joints(env: Env, command: str, gain: float = 5.0) -> torch.Tensor:
    """exp(-gain * sum of squares of joints' errors in rad or m)."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.value[:, 7:] - motion.joints.qpos.of(env.sim.qpos)).square().sum(dim=1))


def imitate_joint_velocities(env: Env, command: str, gain: float = 0.1) -> torch.Tensor:
    """exp(-gain * sum of squares of joints' errors in rad/s or m/s)."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.velocity[:, 6:] - motion.joints.qvel.of(env.sim.qvel)).square().sum(dim=1))


def imitate_sites(env: Env, command: str, gain: float = 40.0) -> torch.Tensor:
    """exp(-gain * sum of squares of the sites' errors in m, in the body's frame)."""
    motion = _motion(env, command)
    return torch.exp(-gain * (motion.sites - motion.body_sites(env)).square().sum(dim=(1, 2)))


def imitate_root_pose(env: Env, command: str, gain: float = 20.0, turn_gain: float = 10.0) -> torch.Tensor:
    """exp(-gain * distance^2 in m2 - turn_gain * angle^2 in rad2)."""
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    distance = (motion.value[:, :3] - pose[:, :3]).square().sum(dim=1)
    return torch.exp(-gain * distance - turn_gain * angle_between(motion.value[:, 3:7], pose[:, 3:]).square())


def imitate_root_velocity(env: Env, command: str, gain: float = 2.0, turn_gain: float = 0.2) -> torch.Tensor:
    """exp(-gain * error^2 in m2/s2 - turn_gain * error^2 in rad2/s2)."""
    motion = _motion(env, command)
    error = (motion.velocity[:, :6] - env.sim.qvel[:, motion.root.qvel]).square()
    return torch.exp(-gain * error[:, :3].sum(dim=1) - turn_gain * error[:, 3:].sum(dim=1))


# Termination


def lost(env: Env, command: str, most_m: float, most_rad: float) -> torch.Tensor:
    """The body is further from where it is to be than most_m, or turned away from it by more than most_rad."""
    motion = _motion(env, command)
    pose = env.sim.qpos[:, motion.root.qpos]
    far = (motion.value[:, :3] - pose[:, :3]).norm(dim=1) > most_m
    return far | (angle_between(motion.value[:, 3:7], pose[:, 3:]) > most_rad)
