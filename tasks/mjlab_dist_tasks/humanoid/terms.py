"""Terms of the humanoid: a walk with a clock, which says when each foot is to be on the ground.

The clock and the two rewards follow Siekmann et al. 2021 (arXiv:2011.01387), who reward each foot for being on the ground in one part
of a cycle and in the air in the other; here the parts do not overlap smoothly. Who is told to stand has no clock: both feet stay.
"""

from __future__ import annotations

import math

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import Columns
from mjlab_dist.env.term import Term
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.sensors import Contact

STANCE_SHARE = 0.55
"""Part of a cycle that a foot is on the ground: more than half, so that one always is, as in walking."""

_MOVING = 0.1
"""Commands of a smaller norm (m/s and rad/s) mean standing."""


def walks(env: Env, command: str) -> torch.Tensor:
    """Whether the robot is told to move, (num_envs,) of bool."""
    return env.command(command).norm(dim=1) > _MOVING


def phase(env: Env, period_s: float) -> torch.Tensor:
    """Part of the cycle that has passed, (num_envs,), from 0 up to 1. It starts with the episode."""
    return torch.remainder(env.episode_length_buf * (env.step_dt_s / period_s), 1.0)


def clock(env: Env, command: str, period_s: float) -> torch.Tensor:
    """Observation: sine and cosine of the phase, (num_envs, 2); 0 where the robot is told to stand."""
    angle = 2.0 * math.pi * phase(env, period_s)
    return torch.stack([torch.sin(angle), torch.cos(angle)], dim=1) * walks(env, command).unsqueeze(1)


def gait(env: Env, sensor: str, command: str, period_s: float) -> torch.Tensor:
    """Reward: share of the two feet that are where the clock wants them, on the ground or in the air; (num_envs,).

    Args:
        env: The envs.
        sensor: A contact sensor of ``env.sensors``: left foot, right foot.
        command: A velocity command.
        period_s: Length of a cycle, of two steps.
    """
    now = phase(env, period_s)
    # The right foot is half a cycle behind the left.
    each = torch.stack([now, torch.remainder(now + 0.5, 1.0)], dim=1)
    wanted = (each < STANCE_SHARE) | ~walks(env, command).unsqueeze(1)
    return (wanted == env.sensor(sensor, Contact).in_contact).float().mean(dim=1)


class SwingHeight(Term):
    """Reward: squares of the differences of feet in the air from a height over the env's origin, in m2, summed; (num_envs,).

    Feet are where MuJoCo last computed them, at the start of the last substep, as is the touch.
    """

    def __init__(self, env: Env, sensor: str, sites: tuple[str, ...], target_m: float) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            sensor: A contact sensor of ``env.sensors``, of k feet.
            sites: Names of k sites under the feet, in the same order.
            target_m: The height.

        Raises:
            UserError: If there are not as many sites as feet.
        """
        self._feet = env.sensor(sensor, Contact)
        if len(sites) != len(self._feet.names):
            raise UserError(
                f"swing height: {len(sites)} sites for the {len(self._feet.names)} feet of {sensor}; name one each"
            )
        self._sites = Columns([env.sim.model.site(name).id for name in sites], env.device)
        self._target_m = target_m

    def __call__(self, env: Env) -> torch.Tensor:
        """Reward."""
        height = self._sites.of(env.sim.view("site_xpos"))[..., 2] - env.origins[:, 2:]
        return ((height - self._target_m).square() * ~self._feet.in_contact).sum(dim=1)
