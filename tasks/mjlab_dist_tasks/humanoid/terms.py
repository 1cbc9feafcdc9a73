"""Terms of the humanoid task: a clock that sets when each foot should be on the ground, and rewards for following it.

The terms follow Siekmann et al. 2021 (arXiv:2011.01387), who reward each foot for being on the ground in one part of a
cycle and in the air in the other part. Unlike in that paper, the transitions between the parts are not smooth. While
the command is to stand, the clock is off, and both feet should be on the ground.
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
"""Fraction of a cycle in which a foot should be on the ground.

The fraction is above 0.5, so at every time, at least one foot should be on the ground.
"""

_MOVING = 0.1
"""A command whose norm (m/s and rad/s) is not above this value is a command to stand."""


def walks(env: Env, command: str) -> torch.Tensor:
    """Return whether the robot must move, (num_envs,) of bool."""
    return env.command(command).norm(dim=1) > _MOVING


def phase(env: Env, period_s: float) -> torch.Tensor:
    """Return the elapsed fraction of the current cycle, in [0, 1), (num_envs,); 0 at the start of an episode."""
    return torch.remainder(env.episode_length_buf * (env.step_dt_s / period_s), 1.0)


def clock(env: Env, command: str, period_s: float) -> torch.Tensor:
    """Observation: sine and cosine of the phase, (num_envs, 2); 0 while the robot must stand.

    Args:
        env: The envs.
        command: Name of a velocity command.
        period_s: Duration of a cycle, in s.
    """
    angle = 2.0 * math.pi * phase(env, period_s)
    return torch.stack([torch.sin(angle), torch.cos(angle)], dim=1) * walks(env, command).unsqueeze(1)


def gait(env: Env, sensor: str, command: str, period_s: float) -> torch.Tensor:
    """Reward: fraction of the two feet that are on the ground or in the air as the clock requires; (num_envs,).

    Args:
        env: The envs.
        sensor: Name of a contact sensor with the left and the right foot.
        command: Name of a velocity command.
        period_s: Duration of a cycle, in s: one step of each foot.
    """
    now = phase(env, period_s)
    # The right foot is half a cycle behind the left.
    each = torch.stack([now, torch.remainder(now + 0.5, 1.0)], dim=1)
    wanted = (each < STANCE_SHARE) | ~walks(env, command).unsqueeze(1)
    return (wanted == env.sensor(sensor, Contact).in_contact).float().mean(dim=1)


class SwingHeight(Term):
    """Reward: squared difference of a foot's height from target_m, summed over the feet in the air, in m²; (num_envs,).

    Heights are above the env's origin. Positions and contacts of the feet are those at the start of the last substep.
    """

    def __init__(self, env: Env, sensor: str, sites: tuple[str, ...], target_m: float) -> None:
        """Look up the feet.

        Args:
            env: The envs.
            sensor: Name of a contact sensor with k feet.
            sites: Names of k sites under the feet, in the same order as the feet.
            target_m: Target height, in m.

        Raises:
            UserError: If the numbers of sites and feet differ.
        """
        self._feet = env.sensor(sensor, Contact)
        if len(sites) != len(self._feet.names):
            raise UserError(
                f"swing height: {len(sites)} sites, but the contact sensor {sensor} has {len(self._feet.names)} feet; "
                "name one site for each foot"
            )
        self._sites = Columns([env.sim.model.site(name).id for name in sites], env.device)
        self._target_m = target_m

    def __call__(self, env: Env) -> torch.Tensor:
        height = self._sites.of(env.sim.view("site_xpos"))[..., 2] - env.origins[:, 2:]
        return ((height - self._target_m).square() * ~self._feet.in_contact).sum(dim=1)
