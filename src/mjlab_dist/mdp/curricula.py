"""Curriculum terms: they change the task during the training, for example to make it harder as the policy succeeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Curriculum
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    from mjlab_dist.config import ParamValue
    from mjlab_dist.env.env import Env, EpisodeTotals
    from mjlab_dist.sim import Limits

MEAN_OVER_EPISODES = 100
"""Number of episodes, over all ranks, that the running mean of a measure spans."""

EPISODE_LENGTH = "episode_length"
"""Name of a measure: the mean length of episodes, as a fraction of the maximum."""


class TerrainLevels(Curriculum):
    """Terrain curriculum of Rudin et al. 2022 (arXiv:2109.11978): robots move between tiles of one column.

    A robot that walked out of its tile starts its next episode one level higher. A robot that covered less than half of
    the commanded distance starts one level lower; if an episode ends early, its command is assumed to hold for the
    remaining time. A robot that walked out of the hardest tile gets a random level, so that easy levels stay in the
    training data.

    Attributes:
        level: Level of each env's next episode, (num_envs,) of int64.
        told_m: Distance commanded so far in this episode, in m, (num_envs,).
    """

    def __init__(self, env: Env, *, command: str = "velocity", num_start_levels: int = 1, joint: str = "root") -> None:
        """Distribute the envs over the columns and the easiest levels.

        Args:
            env: The envs.
            command: Name of a command whose first two numbers are horizontal velocities in m/s.
            num_start_levels: Number of levels on which envs start; with 1, all envs start on the easiest level.
            joint: The robot's free joint.

        Raises:
            UserError: If the task has no terrain, no such command, or fewer than ``num_start_levels`` levels.
        """
        if env.terrain is None:
            raise UserError(
                "terrain levels: the task has no terrain; add parts to --env.sim.terrain, or remove the curriculum"
            )
        origins = torch.from_numpy(env.terrain.origins).to(env.device)
        self._num_levels, self._num_columns = origins.shape[:2]
        if not 1 <= num_start_levels <= self._num_levels:
            raise UserError(
                f"terrain levels: num_start_levels {num_start_levels}: must be between 1 and "
                f"{self._num_levels}, the value of --env.sim.terrain.num-levels"
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
        # Commanded distance
        speed = torch.linalg.vector_norm(self._told, dim=1)
        self.told_m += speed * env.step_dt_s
        left_s = (env.max_episode_length - env.episode_length_buf) * env.step_dt_s
        walked_m = torch.linalg.vector_norm(self._position - self._env_origins[:, :2], dim=1)
        # New level of the envs whose episode has ended
        up = walked_m > self._half_tile_m
        down = ~up & (walked_m < 0.5 * (self.told_m + speed * left_s))
        level = (self.level + up.long() - down.long()).clamp_min(0)
        level = torch.where(level == self._num_levels, torch.randint_like(level, self._num_levels), level)
        self.level.copy_(torch.where(mask, level, self.level))
        write_rows(self._env_origins, mask, self._origin())

    def reset(self, mask: torch.Tensor) -> None:
        self.told_m.masked_fill_(mask, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        return {"level": self.level, "told_m": self.told_m}

    def limits(self) -> dict[str, Limits]:
        return {"level": (0, self._num_levels - 1)}

    def resume(self, saved: Sequence[Mapping[str, torch.Tensor]]) -> None:
        # Give each env the level of a saved env in the same column. Without such an env, keep the current level.
        levels = torch.cat([one["level"] for one in saved]).nan_to_num().clamp(0, self._num_levels - 1).long()
        on_column = (len(levels) - self._column + self._num_columns - 1) // self._num_columns
        nth = self._env_ids // self._num_columns % on_column.clamp_min(1)
        taken = (self._column + self._num_columns * nth).clamp_max(len(levels) - 1)
        self.level.copy_(torch.where(on_column > 0, levels[taken], self.level))
        self._env_origins.copy_(self._origin())

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"level": self.level.float().mean()}

    def _origin(self) -> torch.Tensor:
        return self._origins.index_select(0, self.level * self._num_columns + self._column)


class CommandRange(Curriculum):
    """Widen a command's range while the policy earns enough of a reward term.

    Attributes:
        range: Current bounds, low and high, (2,); the same on all ranks.
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
        """Look up the command and the reward term.

        Args:
            env: The envs.
            command: Name of the command.
            number: Index, from 0, of the number whose range widens. A command samples one or more numbers.
            widest: Final range. The config of the command sets the initial range.
            step: Amount by which each bound moves per iteration, in the number's unit.
            reward: Name of the reward term.
            threshold: The range widens while the mean of the reward term per control step is at least this number. The
                mean does not include the weight of the term.

        Raises:
            UserError: If there is no such command, number or reward term, or the range would become narrower.
        """
        ranges = env.find_command(command).ranges
        if not 0 <= number < len(ranges):
            raise UserError(
                f"command range: number {number}: the command {command} has only {len(ranges)} ranges; use a number "
                f"from 0 to {len(ranges) - 1}"
            )
        self.range = ranges[number]
        low, high = self.range.tolist()
        if not (widest[0] <= low and high <= widest[1] and step > 0):
            raise UserError(
                f"command range: widest {widest[0]} {widest[1]} and step {step}: the widest range must contain the "
                f"initial one, {low:g} to {high:g}, and the step must be positive"
            )
        self._measure = _Measure(env, reward)
        self._threshold = threshold
        self._step = torch.tensor([-step, step], device=env.device)
        self._low, self._high = widest

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        enough = self._measure.update(env, totals) >= self._threshold
        self.range.copy_(torch.where(enough, (self.range + self._step).clamp(self._low, self._high), self.range))

    def state(self) -> dict[str, torch.Tensor]:
        return {"range": self.range, **self._measure.state()}

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"low": self.range[0], "high": self.range[1]}


class RewardWeight(Curriculum):
    """Move the weight of a reward term from its configured value to a final value as the policy succeeds.

    The weight never moves back.

    Attributes:
        progress: Fraction of the change that is done, from 0 to 1, (1,); the same on all ranks.
    """

    def __init__(
        self, env: Env, *, reward: str, weight: float, low: float, high: float, measure: str = EPISODE_LENGTH
    ) -> None:
        """Look up the reward terms.

        Args:
            env: The envs.
            reward: Name of the reward term whose weight changes.
            weight: Final weight.
            low: Value of the measure at which the weight starts to change.
            high: Value of the measure at which the final weight is reached.
            measure: ``episode_length`` (mean length of episodes, as a fraction of the maximum), or the name of a reward
                term (its mean per control step, without its weight).

        Raises:
            UserError: If there is no such reward term, or low is not less than high.
        """
        if not low < high:
            raise UserError(f"reward weight: low {low} and high {high}: low must be less than high")
        at = _index_of(env, reward)
        self._weight = env.weights[at : at + 1]
        self._scale = env.reward_scale
        self._start, self._end = float(env.weights[at]), weight * self._scale
        self._low, self._high = low, high
        self._measure = _Measure(env, measure)
        self.progress = torch.zeros(1, device=env.device)

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        reached = ((self._measure.update(env, totals) - self._low) / (self._high - self._low)).clamp(0.0, 1.0)
        self.progress.copy_(torch.fmax(self.progress, reached))
        start, end = (torch.full_like(self.progress, weight) for weight in (self._start, self._end))
        self._weight.copy_(torch.lerp(start, end, self.progress))

    def state(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight, "progress": self.progress, **self._measure.state()}

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"weight": self._weight[0] / self._scale}


class Schedule(Curriculum):
    """Change a weight, a range of a command or a parameter of a term according to a table of times and values.

    Times are iterations or control steps. Values are interpolated linearly between the points of the table; before the
    first and after the last point they are constant. Values change only between iterations.

    Attributes:
        count: Number of iterations or control steps since the start of the run, (1,) of int64; the same on all ranks.
    """

    def __init__(
        self,
        env: Env,
        *,
        parameter: str,
        points: tuple[tuple[float, ...], ...],
        by: Literal["iteration", "step"] = "iteration",
        interpolate: bool = True,
    ) -> None:
        """Look up the parameter, and set it to its first value.

        Args:
            env: The envs.
            parameter: What changes. ``rewards.<name>``: the weight of a reward term. ``commands.<name>.<number>``: the
                range of one of the numbers that a command samples; the first one has index 0.
                ``<kind>.<name>.params.<parameter>``: a parameter of a term, which is a number or a tuple of numbers;
                with ``.<number>`` at the end, an element of the tuple. ``observations.<group>.<name>.<field>``: the
                field is uniform_noise, gaussian_noise or scale. ``randomizations.<name>.<field>``: the field is low,
                high, mean or std.
            points: Points (when, value), or (when, low, high) for a range, in increasing order of time.
            by: Unit of ``when``: iterations or control steps.
            interpolate: Whether values change gradually. If not, each value is kept until the next point.

        Raises:
            UserError: If there is no such term, number or parameter, or the times of the points do not increase.
        """
        self._value, self._scale = _scheduled(env, parameter)
        self._names = _names(len(self._value), "value" if _is_parameter(parameter) else "weight")
        width = 1 + len(self._value)
        times = [point[0] for point in points]
        if len(points) < 2 or any(len(point) != width for point in points) or times != sorted(set(times)):
            kind = ", ".join(("when", *self._names))
            raise UserError(f"schedule: points {points}: give two or more points ({kind}), in increasing order of time")
        table = torch.tensor(points, dtype=torch.float64, device=env.device)
        self._times, self._values = table[:, 0].contiguous(), table[:, 1:] * self._scale
        self._counts_steps, self._interpolate = by == "step", interpolate
        self.count = torch.zeros(1, dtype=torch.long, device=env.device)
        self._apply()

    @classmethod
    def changes(cls, params: Mapping[str, ParamValue]) -> list[str]:
        parameter = str(params.get("parameter", ""))
        return [parameter] if _is_parameter(parameter) else []

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every curriculum takes them)
        if self._counts_steps:
            self.count += 1

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:  # noqa: ARG002 (every curriculum takes them)
        if not self._counts_steps:
            self.count += 1
        self._apply()

    def state(self) -> dict[str, torch.Tensor]:
        return {"count": self.count, "value": self._value}

    def limits(self) -> dict[str, Limits]:
        return {"count": (0, math.inf)}

    def metrics(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, self._value / self._scale, strict=True))

    def _apply(self) -> None:
        last = len(self._times) - 1
        after = torch.searchsorted(self._times, self.count.double(), right=True).clamp(1, last)
        (start, end), (first, second) = (
            [table.index_select(0, at) for at in (after - 1, after)] for table in (self._times, self._values)
        )
        share = ((self.count - start) / (end - start)).clamp(0.0, 1.0)
        if not self._interpolate:
            share = share.floor()
        self._value.copy_(torch.lerp(first, second, share.unsqueeze(1)).squeeze(0))


def _is_parameter(path: str) -> bool:
    """Return whether a path names a parameter of the config, instead of a reward's weight or a command's range."""
    kind, _, name = path.partition(".")
    return ".params." in name or (bool(name) and kind not in ("rewards", "commands"))


def _names(num_values: int, name: str) -> tuple[str, ...]:
    """Return the names of the values of a schedule, for metrics and messages."""
    return {1: (name,), 2: ("low", "high")}.get(num_values, tuple(f"value_{i}" for i in range(num_values)))


def _scheduled(env: Env, parameter: str) -> tuple[torch.Tensor, float]:
    """Return the tensor that a schedule changes, (k,), and the factor by which config values are multiplied in it."""
    if _is_parameter(parameter):
        return env.find_parameter(parameter), 1.0
    kind, _, name = parameter.partition(".")
    if kind == "rewards":
        at = _index_of(env, name)
        return env.weights[at : at + 1], env.reward_scale
    command, _, number = name.rpartition(".")
    if kind == "commands" and command and number.isdecimal():
        ranges = env.find_command(command).ranges
        if int(number) < len(ranges):
            return ranges[int(number)], 1.0
        raise UserError(
            f"schedule: parameter {parameter}: the command {command} has no number {number}; use an index from 0 to "
            f"{len(ranges) - 1}"
        )
    raise UserError(
        f"schedule: parameter {parameter}: write rewards.<name>, commands.<name>.<number>, or the path of a parameter "
        "such as terminations.<name>.params.<parameter>"
    )


class _Measure:
    """Running mean of episode lengths, or of a reward term per control step, over the newest episodes of all ranks."""

    def __init__(self, env: Env, name: str) -> None:
        self._term = None if name == EPISODE_LENGTH else _index_of(env, name)
        self._mean = torch.zeros(1, device=env.device)
        self._known = torch.zeros(1, device=env.device)

    def update(self, env: Env, totals: EpisodeTotals) -> torch.Tensor:
        """Add the episodes of an iteration and return the mean, (1,); NaN until there are enough episodes."""
        if self._term is None:
            value = totals.steps / (totals.episodes * env.max_episode_length)
        else:
            value = totals.unweighted[self._term] / totals.steps
        known = value.isfinite()  # false if no episode ended
        share = torch.where(known, (totals.episodes / MEAN_OVER_EPISODES).clamp(max=1.0), 0.0)
        self._mean.lerp_(torch.where(known, value, 0.0), share)
        self._known.lerp_(torch.ones_like(self._known), share)
        # Remove the bias toward the initial value 0, as Adam does for its running means.
        return torch.where(self._known > 0.5, self._mean / self._known, torch.nan)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the mean and its bias correction, (1,) each: one pair for the whole run, not one per env."""
        return {"mean": self._mean, "known": self._known}


def _index_of(env: Env, reward: str) -> int:
    if reward not in env.reward_names:
        raise UserError(f"reward {reward}: there is no such term; the task has {', '.join(env.reward_names)}")
    return env.reward_names.index(reward)
