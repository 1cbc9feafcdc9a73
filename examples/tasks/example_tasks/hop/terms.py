"""Terms of the hopping leg: the command to hop, and rewards and metrics that depend on the command."""

from __future__ import annotations

import torch

from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Range

FOLLOWED = (0.9, 1.5)
"""A hop follows its command if its maximum height is between these multiples of the target."""


def clearance(env: Env) -> torch.Tensor:
    """Return the height of the lower end of the sole above the ground, in m, at least 0; (num_envs,)."""
    heel, toe = (env.sim.sensor(name)[:, 2] for name in ("heel", "toe"))
    return torch.minimum(heel, toe).clamp_min(0.0)


class Hop(Command):
    """A command to hop once to a given height and to stand until the next command.

    Attributes:
        value: Target height of the sole in m while a hop is due, else 0; (num_envs, 1).
        gain: Increase of the current hop's maximum height in this step, as a share of the target, (num_envs,). Heights
            above the target do not count.
        followed: Number of hops of this episode that followed their command, (num_envs,).
        finished: Number of hops of this episode whose time ``hop_s`` has passed, (num_envs,).
    """

    def __init__(self, env: Env, *, height_m: Range, hop_s: float = 0.8, resample_s: Range = (1.6, 3.0)) -> None:
        """Allocate the tensors.

        Args:
            env: The envs.
            height_m: Range of the target height.
            hop_s: Time for a hop.
            resample_s: Range of the time between two commands; longer than hop_s, so that the leg stands in between.
        """
        super().__init__(env, [height_m], 1, resample_s)
        self._hop_s = hop_s
        self._target_m, self._apex_m, self._age_s = torch.zeros(3, env.num_envs, device=env.device)
        self.gain, self.followed, self.finished = torch.zeros(3, env.num_envs, device=env.device)
        self._ended = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every command takes the env)
        write_rows(self._target_m, mask, self.uniform().squeeze(1))
        write_rows(self._apex_m, mask, 0.0)
        write_rows(self._age_s, mask, 0.0)

    def follow(self, env: Env) -> None:
        # Highest point of the current hop
        is_due = self.value[:, 0] > 0.0
        height = torch.where(is_due, clearance(env), 0.0)
        apex = torch.maximum(self._apex_m, height)
        reached = torch.minimum(apex, self._target_m) - torch.minimum(self._apex_m, self._target_m)
        torch.div(reached, self._target_m, out=self.gain)
        self._apex_m.copy_(apex)
        # Hops whose time has passed
        self._age_s += env.step_dt_s
        over = is_due & (self._age_s > self._hop_s)
        low, high = (self._target_m * factor for factor in FOLLOWED)
        self.followed += over & (apex >= low) & (apex <= high)
        self.finished += over
        # The policy sees the target while the hop is due
        self.value[:, 0] = torch.where(self._age_s <= self._hop_s, self._target_m, 0.0)

    def cleared(self) -> list[torch.Tensor]:
        return [*super().cleared(), self.followed, self.finished, self.gain]

    def state(self) -> dict[str, torch.Tensor]:
        own = {"target_m": self._target_m, "apex_m": self._apex_m, "age_s": self._age_s}
        return {**super().state(), **own, "gain": self.gain, "followed": self.followed, "finished": self.finished}


def _hop(env: Env, command: str) -> Hop:
    found = env.find_command(command)
    assert isinstance(found, Hop)
    return found


def hop_gain(env: Env, command: str) -> torch.Tensor:
    """Reward: height gained in this step, as a share of the target; the sum over a hop is at most 1; (num_envs,)."""
    return _hop(env, command).gain


def hop_excess(env: Env, command: str) -> torch.Tensor:
    """Reward: distance in m by which the sole is higher than 1.2 times the target height, or 0; (num_envs,)."""
    return (clearance(env) - 1.2 * env.command(command)[:, 0]).clamp_min(0.0)


def share_followed(env: Env, command: str) -> torch.Tensor:
    """Return the share of this episode's hops that followed their command, (num_envs,); 0 before the first hop."""
    hop = _hop(env, command)
    return hop.followed / hop.finished.clamp_min(1.0)


def pitch(env: Env) -> torch.Tensor:
    """Reward: square of the torso's pitch, in rad²; (num_envs,)."""
    return env.sim.qpos[:, env.joints["pitch"].qpos].square().sum(dim=1)


def drift(env: Env) -> torch.Tensor:
    """Reward: square of the torso's horizontal distance from its start, in m²; (num_envs,)."""
    return env.sim.qpos[:, env.joints["x"].qpos].square().sum(dim=1)


def fallen(env: Env, max_rad: float, min_m: float) -> torch.Tensor:
    """Termination: the torso is pitched by more than max_rad, or lower than min_m; (num_envs,) of bool."""
    height = env.sim.view("xpos")[:, env.sim.model.body("torso").id, 2]
    angle = env.sim.qpos[:, env.joints["pitch"].qpos].squeeze(1).abs()
    return (angle > max_rad) | (height < min_m)
