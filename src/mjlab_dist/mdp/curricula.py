"""What becomes harder as the policy succeeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Curriculum
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.env.env import Env, EpisodeTotals

MEAN_OVER_EPISODES = 100
"""What is measured by iterations is a mean over about so many of the newest episodes, of all ranks."""

EPISODE_LENGTH = "episode_length"
"""A measure: length of an episode, as a share of the longest that there is."""


class TerrainLevels(Curriculum):
    """Send a robot to a harder tile of the same column once it has walked out of its tile, to an easier one if it hardly walked.

    Hardly: less than half of the way that the command told it, counting the rest of an episode that ended early. Whoever walks out
    of the hardest tile comes to a level drawn anew, so that none is forgotten (Rudin et al. 2022, arXiv:2109.11978).

    Attributes:
        level: Of each env's next episode, (num_envs,) of int64.
        told_m: Way that the command has told in this episode, (num_envs,).
    """

    def __init__(self, env: Env, *, command: str = "velocity", num_start_levels: int = 1, joint: str = "root") -> None:
        """Spread envs over the columns and the easiest levels.

        Args:
            env: The envs.
            command: Name of a command whose first two numbers are velocities over ground in m/s.
            num_start_levels: Levels that envs start on, from the easiest.
            joint: The robot's free joint.

        Raises:
            UserError: If the task has no terrain, no such command or not so many levels.
        """
        if env.terrain is None:
            raise UserError(
                "terrain levels: the task has no terrain; give --env.sim.terrain parts, or drop the curriculum"
            )
        origins = torch.from_numpy(env.terrain.origins).to(env.device)
        self._num_levels, self._num_columns = origins.shape[:2]
        if not 1 <= num_start_levels <= self._num_levels:
            raise UserError(
                f"terrain levels: num_start_levels {num_start_levels}: has to lie between 1 and "
                f"--env.sim.terrain.num-levels {self._num_levels}"
            )
        self._origins = origins.flatten(0, 1)
        self._half_tile_m = env.terrain.config.tile_size_m / 2
        self._env_ids = env.env_ids
        self._column = env.env_ids % self._num_columns
        self._position = env.sim.qpos[:, env.joints[joint].qpos][:, :2]
        self._told = env.command(command)[:, :2]
        self.level = (env.env_ids // self._num_columns) % num_start_levels
        self.told_m = torch.zeros(env.num_envs, device=env.device)
        self._env_origins = env.origins
        self._env_origins.copy_(self._origin())

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:
        """Let a step pass; move envs of ended episodes up or down."""
        speed = torch.linalg.vector_norm(self._told, dim=1)
        self.told_m += speed * env.step_dt_s
        left_s = (env.max_episode_length - env.episode_length_buf) * env.step_dt_s
        walked_m = torch.linalg.vector_norm(self._position - self._env_origins[:, :2], dim=1)
        up = walked_m > self._half_tile_m
        down = ~up & (walked_m < 0.5 * (self.told_m + speed * left_s))
        level = (self.level + up.long() - down.long()).clamp_min(0)
        level = torch.where(level == self._num_levels, torch.randint_like(level, self._num_levels), level)
        self.level.copy_(torch.where(mask, level, self.level))
        write_rows(self._env_origins, mask, self._origin())

    def reset(self, mask: torch.Tensor) -> None:
        """Count the way anew."""
        self.told_m.masked_fill_(mask, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        """Levels and ways."""
        return {"level": self.level, "told_m": self.told_m}

    def go_on(self, saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
        """Give each env the level of one that was on its column, if any was."""
        levels = torch.cat([one["level"] for one in saved]).clamp_max(self._num_levels - 1)
        on_column = (len(levels) - self._column + self._num_columns - 1) // self._num_columns
        nth = self._env_ids // self._num_columns % on_column.clamp_min(1)
        taken = (self._column + self._num_columns * nth).clamp_max(len(levels) - 1)
        self.level.copy_(torch.where(on_column > 0, levels[taken], self.level))
        self._env_origins.copy_(self._origin())

    def metrics(self) -> dict[str, torch.Tensor]:
        """The mean level, from 0."""
        return {"level": self.level.float().mean()}

    def _origin(self) -> torch.Tensor:
        return self._origins.index_select(0, self.level * self._num_columns + self._column)


class CommandRange(Curriculum):
    """Widen the range that a number of a command is drawn from, as long as the policy earns a term of the reward well enough.

    Attributes:
        range: Present lowest and highest, (2,), the same on all ranks.
    """

    def __init__(
        self,
        env: Env,
        *,
        command: str,
        number: int = 0,
        widest: tuple[float, float],
        step: float,
        reward: str,
        threshold: float = 0.8,
    ) -> None:
        """Look up the command.

        Args:
            env: The envs.
            command: The command's name.
            number: Which of the numbers that it draws.
            widest: The range in the end; the command's own is that at the start.
            step: By how much each end moves in an iteration at most, in the number's unit.
            reward: Name of the reward term.
            threshold: The term's mean per control step, before its weight, from which on the range widens.

        Raises:
            UserError: If there is no such command, number or reward term, or the range would become narrower.
        """
        ranges = env.find_command(command).ranges
        if not 0 <= number < len(ranges):
            raise UserError(
                f"command range: number {number}: the command {command} draws {len(ranges)}, counted from 0"
            )
        self.range = ranges[number]
        low, high = self.range.tolist()
        if not (widest[0] <= low and high <= widest[1] and step > 0):
            raise UserError(
                f"command range: widest {widest[0]} {widest[1]} and step {step}: the range at the start, {low:g} to {high:g}, has to "
                "lie within, and the step to be positive"
            )
        self._measure = _Measure(env, reward)
        self._threshold = threshold
        self._step = torch.tensor([-step, step], device=env.device)
        self._low, self._high = widest

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        """Widen the range, if the newest episodes earned enough."""
        enough = self._measure.update(env, totals) >= self._threshold
        self.range.copy_(torch.where(enough, (self.range + self._step).clamp(self._low, self._high), self.range))

    def state(self) -> dict[str, torch.Tensor]:
        """The range, and what was measured."""
        return {"range": self.range, **self._measure.state()}

    def metrics(self) -> dict[str, torch.Tensor]:
        """Both ends."""
        return {"low": self.range[0], "high": self.range[1]}


class RewardWeight(Curriculum):
    """Move the weight of a reward term from the config's to another, as the policy succeeds: never back.

    Attributes:
        progress: Share of the way that the weight has gone, (1,), the same on all ranks.
    """

    def __init__(
        self, env: Env, *, reward: str, weight: float, low: float, high: float, measure: str = EPISODE_LENGTH
    ) -> None:
        """Look up the terms.

        Args:
            env: The envs.
            reward: Name of the reward term whose weight moves.
            weight: Its weight in the end.
            low: What is measured where the weight starts to move.
            high: What is measured where it arrives.
            measure: Mean length of episodes as a share of the longest (episode_length), or the name of a reward term: its mean per
                control step, before its weight.

        Raises:
            UserError: If there is no such reward term, or low is not less than high.
        """
        if not low < high:
            raise UserError(f"reward weight: low {low} and high {high}: low has to be less")
        at = _index_of(env, reward)
        self._weight = env.weights[at : at + 1]
        self._start, self._end = float(env.weights[at]), weight
        self._low, self._high = low, high
        self._measure = _Measure(env, measure)
        self.progress = torch.zeros(1, device=env.device)

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        """Move the weight to where the newest episodes take it."""
        reached = ((self._measure.update(env, totals) - self._low) / (self._high - self._low)).clamp(0.0, 1.0)
        self.progress.copy_(torch.fmax(self.progress, reached))
        self._weight.copy_(
            torch.lerp(
                torch.full_like(self.progress, self._start), torch.full_like(self.progress, self._end), self.progress
            )
        )

    def state(self) -> dict[str, torch.Tensor]:
        """The weight, and what was measured."""
        return {"weight": self._weight, "progress": self.progress, **self._measure.state()}

    def metrics(self) -> dict[str, torch.Tensor]:
        """The weight."""
        return {"weight": self._weight[0]}


class _Measure:
    """A mean over the newest episodes of all ranks: of their length, or of a term of the reward per control step."""

    def __init__(self, env: Env, name: str) -> None:
        self._term = None if name == EPISODE_LENGTH else _index_of(env, name)
        self._mean = torch.zeros(1, device=env.device)
        self._known = torch.zeros(1, device=env.device)

    def update(self, env: Env, totals: EpisodeTotals) -> torch.Tensor:
        """The mean with these episodes, (1,); NaN before there were enough."""
        if self._term is None:
            value = totals.steps / (totals.episodes * env.max_episode_length)
        else:
            value = totals.terms[self._term] / (env.weights[self._term] * totals.steps)
        known = value.isfinite()  # not where no episode ended
        share = torch.where(known, (totals.episodes / MEAN_OVER_EPISODES).clamp(max=1.0), 0.0)
        self._mean.lerp_(torch.where(known, value, 0.0), share)
        self._known.lerp_(torch.ones_like(self._known), share)
        # What it began with, 0, is taken out of the mean.
        return torch.where(self._known > 0.5, self._mean / self._known, torch.nan)

    def state(self) -> dict[str, torch.Tensor]:
        """Of the run, not of envs: (1,) each."""
        return {"mean": self._mean, "known": self._known}


def _index_of(env: Env, reward: str) -> int:
    if reward not in env.reward_names:
        raise UserError(f"reward {reward}: the task has {', '.join(env.reward_names)}")
    return env.reward_names.index(reward)
