"""What the policy is told to do: values that are drawn when an episode starts and every so often in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Range
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.rotation import from_euler, wrap_angle

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env


class Velocity(Command):
    """Velocity of a free-floating robot over ground, in the frame of its heading: forward and to the left in m/s, yaw rate in rad/s.

    A share of the envs is told to stand. Another is told a heading, in place of a yaw rate: then the yaw rate is proportional to
    the angle that is left, so that the robot walks along lines in the world (as in Rudin et al. 2022, arXiv:2109.11978).

    Attributes:
        value: Forward, left, yaw rate, (num_envs, 3).
        heading_rad: The heading that is told, (num_envs,).
        has_heading: Whether one is told, (num_envs,) of bool.
    """

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
        """Allocate.

        Args:
            env: The envs.
            forward_m_s: Range of the forward velocity.
            left_m_s: Range of the velocity to the left.
            yaw_rad_s: Range of the yaw rate.
            resample_s: Range of the time between two draws.
            standing_share: Share of the draws that tell a robot to stand.
            heading_share: Share of the draws that tell a heading.
            heading_gain: Yaw rate per angle left, in 1/s.
            joint: The robot's free joint.
        """
        super().__init__(env, [forward_m_s, left_m_s, yaw_rad_s], 3, resample_s)
        self._shares, self._gain = (standing_share, heading_share), heading_gain
        self._base = env.base(joint)
        self.heading_rad = torch.zeros(env.num_envs, device=env.device)
        self.has_heading = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        """Draw velocities, who stands, and headings."""
        drawn = self.uniform()
        angle, *chances = torch.rand(3, env.num_envs, device=env.device)
        stands, has_heading = (chance < share for chance, share in zip(chances, self._shares, strict=True))
        write_rows(self.value, mask, drawn.masked_fill_(stands.unsqueeze(1), 0.0))
        write_rows(self.has_heading, mask, has_heading > stands)  # and does not stand
        write_rows(self.heading_rad, mask, angle.sub_(0.5).mul_(2.0 * math.pi))

    def follow(self, env: Env) -> None:  # noqa: ARG002 (every command takes the env)
        """Turn those that have a heading towards it."""
        if self._shares[1] == 0.0:
            return
        low, high = self.ranges[2]
        yaw = wrap_angle(self.heading_rad - self._base.heading).mul_(self._gain).clamp_(low, high)
        write_rows(self.value[:, 2], self.has_heading, yaw)

    def state(self) -> dict[str, torch.Tensor]:
        """Values, times and headings."""
        return {**super().state(), "heading_rad": self.heading_rad, "has_heading": self.has_heading}


class Pose(Command):
    """A pose to reach, in the world's frame but from the env's origin: position in m, then orientation.

    Attributes:
        value: Position (3) and unit quaternion (4), (num_envs, 7).
    """

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
        """Allocate.

        Args:
            env: The envs.
            x_m: Range of x.
            y_m: Range of y.
            z_m: Range of z.
            roll_rad: Range of the turn about x, the first of three.
            pitch_rad: Range of the turn about y.
            yaw_rad: Range of the turn about z.
            resample_s: Range of the time between two draws; by default there is one an episode.
            marker: A mocap body that stands at the pose, so that videos show it; none where empty.

        Raises:
            UserError: If there is no such mocap body.
        """
        super().__init__(env, [x_m, y_m, z_m, roll_rad, pitch_rad, yaw_rad], 7, resample_s)
        self._marker = _mocap(env, marker) if marker else None

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        """Draw positions and orientations."""
        drawn = self.uniform()
        position = drawn[:, :3] + env.origins
        write_rows(self.value, mask, torch.cat([position, from_euler(*drawn[:, 3:].unbind(dim=1))], dim=1))
        if self._marker is not None:
            marker_position, marker_quat = self._marker
            marker_position.copy_(self.value[:, :3])
            marker_quat.copy_(self.value[:, 3:])


def _mocap(env: Env, body: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a mocap body is, in the world's frame: position (num_envs, 3) in m and unit quaternion (num_envs, 4), as views."""
    model = env.sim.model
    names = {model.body(i).name: int(row) for i, row in enumerate(model.body_mocapid) if row >= 0}
    if body not in names:
        raise UserError(f"mocap body {body}: the model has {', '.join(names) or 'none'}")
    return env.sim.view("mocap_pos")[:, names[body]], env.sim.view("mocap_quat")[:, names[body]]
