"""Terms of the finger: targets within its reach, a depth image, and the distance from its tip to the target."""

from __future__ import annotations

import mujoco
import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Range, Term


class Target(Command):
    """A ball that the fingertip must touch, at a place that the finger can reach.

    The two tendons bend the middle and the distal joint together. A target is the position of the tip for random joint
    angles: an angle for the proximal joint, a random share of this angle for the middle joint, and 0.8 of the middle
    joint's angle for the distal joint.

    Attributes:
        value: Position of the ball in the x-z plane, in m; (num_envs, 2).
    """

    def __init__(self, env: Env, *, bend_rad: Range, curl: Range, resample_s: Range, marker: str = "ball") -> None:
        """Read the lengths of the links, and look up the ball.

        Args:
            env: The envs.
            bend_rad: Range of the angle of the proximal joint.
            curl: Range of the angle of the middle joint, as a share of the proximal joint's angle.
            resample_s: Range of the time between two targets.
            marker: Mocap body of the ball.
        """
        super().__init__(env, [bend_rad, curl], 2, resample_s)
        model = env.sim.model
        row = int(model.body_mocapid[model.body(marker).id])
        self._ball = env.sim.view("mocap_pos")[:, row]
        lengths_m = [model.body("middle").pos[2], model.body("distal").pos[2], model.site("tip").pos[2]]
        self._lengths_m = torch.tensor(lengths_m, dtype=torch.float32, device=env.device)

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every command takes the env)
        bend, curl = self.uniform().unbind(dim=1)
        turns = torch.stack([bend, bend * curl, 0.8 * bend * curl], dim=1).cumsum(dim=1)
        place = torch.stack([(turn(turns) * self._lengths_m).sum(dim=1) for turn in (torch.sin, torch.cos)], dim=1)
        write_rows(self.value, mask, place)
        self._ball[:, 0::2] = self.value


class DepthImage(Term):
    """Depth image of a camera: 0 at far_m or more, 1 at near_m or less; (num_envs, pixels), row by row.

    The MJCF declares the image as a rangefinder sensor of a camera. Each pixel measures the distance along its ray.
    """

    def __init__(self, env: Env, sensor: str, near_m: float, far_m: float) -> None:
        """Look up the sensor.

        Args:
            env: The envs.
            sensor: The rangefinder.
            near_m: Distance that is shown as 1.
            far_m: Distance that is shown as 0.
        """
        assert env.sim.model.sensor(sensor).type[0] == mujoco.mjtSensor.mjSENS_RANGEFINDER
        self._distance_m = env.sim.sensor(sensor)
        self._near_m, self._far_m = near_m, far_m

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        nothing = self._distance_m < 0.0
        shown = (self._far_m - self._distance_m) / (self._far_m - self._near_m)
        return shown.clamp(0.0, 1.0).masked_fill(nothing, 0.0)


def tip_to_target(env: Env, command: str) -> torch.Tensor:
    """Return the vector from the fingertip to its target in the x-z plane, in m; (num_envs, 2)."""
    return env.command(command) - env.sim.sensor("tip")[:, 0::2]


def distance(env: Env, command: str) -> torch.Tensor:
    """Return the distance of the fingertip from its target, in m; (num_envs,)."""
    return tip_to_target(env, command).norm(dim=1)


def at_target(env: Env, command: str, scale_m: float) -> torch.Tensor:
    """Reward: 1 - tanh(d / scale_m), where d is the distance of the fingertip from its target; (num_envs,)."""
    return 1.0 - torch.tanh(distance(env, command) / scale_m)
