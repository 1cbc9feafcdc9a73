"""Command terms: targets for the policy, resampled at the start of an episode and at intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Range
from mjlab_dist.errors import UserError
from mjlab_dist.mdp import kernels
from mjlab_dist.mdp.mirror import Image
from mjlab_dist.mdp.rotation import from_euler, wrap_angle

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class Velocity(Command):
    """Velocity command for a floating base: forward and left velocity in m/s, and yaw rate in rad/s.

    The velocities are in the horizontal frame that turns with the robot's heading. A fraction of the commands is zero:
    the robot must stand. Another fraction has a target heading, and a yaw rate that is proportional to the heading
    error, so that the robot walks in straight lines (Rudin et al. 2022, arXiv:2109.11978).

    Attributes:
        value: Forward velocity, left velocity and yaw rate, (num_envs, 3).
        heading_rad: Target heading, (num_envs,).
        has_heading: Whether the env has a target heading, (num_envs,) of bool.
        error_m_s: Norm of the difference between commanded and actual horizontal velocity in the latest step,
            (num_envs,).
        error_rad_s: Absolute difference between commanded and actual yaw rate in the latest step, (num_envs,).
    """

    schedulable = ("standing_share", "heading_share", "heading_gain")
    drawn_names = ("forward m/s", "left m/s", "yaw rad/s")
    mirrored: Image = ((0, 1), (1, -1), (2, -1))

    def __init__(
        self,
        env: Env,
        *,
        forward_m_s: Range,
        left_m_s: Range,
        yaw_rad_s: Range,
        resample_s: Range = (10.0, 10.0),
        standing_share: float = 0.0,
        heading_share: float = 0.0,
        heading_gain: float = 0.5,
        joint: str = "root",
    ) -> None:
        """Allocate the tensors.

        Args:
            env: The envs.
            forward_m_s: Range of the forward velocity.
            left_m_s: Range of the velocity to the left.
            yaw_rad_s: Range of the yaw rate.
            resample_s: Range of the time between two commands.
            standing_share: Fraction of the commands that are zero.
            heading_share: Fraction of the commands that have a target heading.
            heading_gain: Yaw rate per heading error, in 1/s.
            joint: The robot's free joint.
        """
        super().__init__(env, [forward_m_s, left_m_s, yaw_rad_s], 3, resample_s)
        self._shares, self._gain = (standing_share, heading_share), heading_gain
        self._has_headings = isinstance(heading_share, torch.Tensor) or heading_share > 0.0
        self._held_heading: float | None = None
        self._base = env.base(joint)
        self.heading_rad = torch.zeros(env.num_envs, device=env.device)
        self.has_heading = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        self.error_m_s, self.error_rad_s = torch.zeros(2, env.num_envs, device=env.device)
        velocity = env.sim.qvel[:, env.joints[joint].qvel]
        arrays = [self.value, self._base.level_velocity, velocity, self.error_m_s, self.error_rad_s]
        self._measure = env.sim.record_launch(kernels.measure_tracking, env.num_envs, arrays, changes_state=False)

    def hold_heading(self, angle_rad: float | None) -> None:
        """Set a target heading to use with the velocities of :meth:`hold`. The yaw rate then follows the heading error.

        Args:
            angle_rad: The heading; None to use the yaw rate of :meth:`hold`.
        """
        self._held_heading = angle_rad
        self._is_held_anew = True

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        drawn = self.uniform()
        if self._held is not None:
            write_rows(self.value, mask, drawn)
            write_rows(self.has_heading, mask, self._held_heading is not None)
            write_rows(self.heading_rad, mask, self._held_heading or 0.0)
            return
        angle, *chances = torch.rand(3, env.num_envs, device=env.device)
        stands, has_heading = (chance < share for chance, share in zip(chances, self._shares, strict=True))
        write_rows(self.value, mask, drawn.masked_fill_(stands.unsqueeze(1), 0.0))
        write_rows(self.has_heading, mask, has_heading > stands)  # has a heading and does not stand
        write_rows(self.heading_rad, mask, angle.sub_(0.5).mul_(2.0 * math.pi))

    def follow(self, env: Env) -> None:  # noqa: ARG002 (every command takes the env)
        if not self._has_headings and self._held_heading is None:
            return
        low, high = self.ranges[2]
        yaw = wrap_angle(self.heading_rad - self._base.heading).mul_(self._gain).clamp_(low, high)
        write_rows(self.value[:, 2], self.has_heading, yaw)

    def metrics(self) -> dict[str, torch.Tensor]:
        _ = self._base.level_velocity  # computes the velocity if no other term of this step has read it
        self._measure()
        return {"error_m_s": self.error_m_s, "error_rad_s": self.error_rad_s}

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), "heading_rad": self.heading_rad, "has_heading": self.has_heading}


class Pose(Command):
    """Target pose in the world frame. The ranges of the position are relative to the env's origin.

    Attributes:
        value: Position in m and unit quaternion (w, x, y, z), (num_envs, 7).
    """

    drawn_names = ("x m", "y m", "z m", "roll rad", "pitch rad", "yaw rad")

    def __init__(
        self,
        env: Env,
        *,
        x_m: Range,
        y_m: Range,
        z_m: Range,
        roll_rad: Range = (0.0, 0.0),
        pitch_rad: Range = (0.0, 0.0),
        yaw_rad: Range = (0.0, 0.0),
        resample_s: Range = (1e9, 1e9),
        marker: str = "",
    ) -> None:
        """Allocate the tensors, and look up the marker.

        Args:
            env: The envs.
            x_m: Range of x.
            y_m: Range of y.
            z_m: Range of z.
            roll_rad: Range of the rotation about the world's x axis, which is applied first.
            pitch_rad: Range of the rotation about the world's y axis, applied second.
            yaw_rad: Range of the rotation about the world's z axis, applied last.
            resample_s: Range of the time between two targets. Default: one target per episode.
            marker: Mocap body that is moved to the target, so that videos show it; empty for none.

        Raises:
            UserError: If there is no such mocap body.
        """
        super().__init__(env, [x_m, y_m, z_m, roll_rad, pitch_rad, yaw_rad], 7, resample_s)
        self._marker = _mocap(env, marker) if marker else None

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        drawn = self.uniform()
        position = drawn[:, :3] + env.origins
        write_rows(self.value, mask, torch.cat([position, from_euler(*drawn[:, 3:].unbind(dim=1))], dim=1))
        if self._marker is not None:
            marker_position, marker_quat = self._marker
            marker_position.copy_(self.value[:, :3])
            marker_quat.copy_(self.value[:, 3:])


def _mocap(env: Env, body: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return views of a mocap body's position in m, (num_envs, 3), and its unit quaternion, (num_envs, 4)."""
    model = env.sim.model
    names = {model.body(i).name: int(row) for i, row in enumerate(model.body_mocapid) if row >= 0}
    if body not in names:
        raise UserError(f"mocap body {body}: there is no such body; the model has {', '.join(names) or 'none'}")
    return env.sim.view("mocap_pos")[:, names[body]], env.sim.view("mocap_quat")[:, names[body]]
