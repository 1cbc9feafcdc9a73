"""Terms that tests name in their configs."""

from __future__ import annotations

import math

import torch

from mjlab_dist.env import Env, EpisodeTotals
from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Command, Curriculum, LazySensor, Term

not_callable = 3


def position(env: Env) -> torch.Tensor:
    """Reward: the first coordinate of every env."""
    return env.sim.qpos[:, 0]


def alive(env: Env) -> torch.Tensor:
    """Reward: 1 in every env."""
    return torch.ones(env.num_envs, device=env.device)


def effort(env: Env) -> torch.Tensor:
    """Reward: the sum of the squared actions."""
    return env.actions.square().sum(dim=1)


def far(env: Env, limit: float) -> torch.Tensor:
    """Termination: the absolute value of the first coordinate exceeds a limit."""
    return env.sim.qpos[:, 0].abs() > limit


def own_id(env: Env) -> torch.Tensor:
    """Observation: index of the env in the whole run; (num_envs, 1)."""
    return env.env_ids.unsqueeze(1).float()


def geom_position(env: Env, geom: int) -> torch.Tensor:
    """Observation: position of a geom, (num_envs, 3). After a physics step, it is old until MuJoCo's forward runs."""
    return env.sim.view("geom_xpos")[:, geom]


def root(env: Env) -> torch.Tensor:
    """Observation with a mistake: square root of the first coordinate, NaN if it is negative; (num_envs, 1)."""
    return env.sim.qpos[:, :1].sqrt()


def inverse(env: Env, limit: float) -> torch.Tensor:
    """Reward with a user's mistake: 1 / (limit - first coordinate), which is infinite at the limit."""
    return 1.0 / (limit - env.sim.qpos[:, 0]).clamp_min(0.0)


def move_origin(env: Env, mask: torch.Tensor, by_m: float) -> None:
    """Event: move the origins of some envs by a distance along x."""
    env.origins[:, 0] += mask * by_m


class Counts(Term):
    """Event that counts how often it has happened in each env's episode."""

    def __init__(self, env: Env) -> None:
        self.times = torch.zeros(env.num_envs, device=env.device)

    def __call__(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002
        self.times += mask

    def reset(self, mask: torch.Tensor) -> None:
        self.times.masked_fill_(mask, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        return {"times": self.times}


class Ended(Curriculum):
    """Curriculum that stores the state at the end of each env's last episode, and the totals of every iteration."""

    def __init__(self, env: Env, factor: float = 1.0) -> None:
        self.calls = 0
        self.factor = factor
        self.qpos = torch.zeros_like(env.sim.qpos)
        self.length = torch.zeros_like(env.episode_length_buf)
        self.terminated = torch.zeros_like(env.terminated)
        self.timed_out = torch.zeros_like(env.timed_out)
        self.totals: list[EpisodeTotals] = []

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:
        self.calls += 1
        write_rows(self.qpos, mask, env.sim.qpos)
        write_rows(self.length, mask, env.episode_length_buf)
        write_rows(self.terminated, mask, env.terminated)
        write_rows(self.timed_out, mask, env.timed_out)

    def iteration_ends(self, env: Env, totals: EpisodeTotals) -> None:
        self.totals.append(totals)
        env.weights *= self.factor

    def metrics(self) -> dict[str, torch.Tensor]:
        return {"length": self.length.float().mean()}

    def state(self) -> dict[str, torch.Tensor]:
        return {"qpos": self.qpos, "length": self.length}


def go_to_command(env: Env, mask: torch.Tensor, command: str) -> None:
    """Event: place a floating base at the position of a command."""
    write_rows(env.sim.qpos[:, :3], mask, env.command(command)[:, :3])


class LastCommand(Curriculum):
    """Curriculum that stores the value of a command at the end of each env's last episode."""

    def __init__(self, env: Env, command: str) -> None:
        self._command = env.command(command)
        self.value = torch.zeros_like(self._command)

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002 (every curriculum takes the env)
        write_rows(self.value, mask, self._command)

    def state(self) -> dict[str, torch.Tensor]:
        return {"value": self.value}


def lift(env: Env, mask: torch.Tensor, z_m: float) -> None:
    """Event: place a floating base at a height."""
    write_rows(env.sim.qpos[:, 2], mask, z_m)


class Remembering(Command):
    """Command whose value is the height of a floating base. It counts how often it is sampled in each episode.

    Attributes:
        draws: Number of samples since the start of the episode, (num_envs,).
        height_at_draw_m: Height when the last value was sampled, (num_envs,).
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env, [], 1, (1e9, 1e9))
        self.draws, self.height_at_draw_m = torch.zeros(2, env.num_envs, device=env.device)

    def reset(self, mask: torch.Tensor) -> None:
        write_rows(self.height_at_draw_m, mask, 0.0)

    def draw(self, env: Env, mask: torch.Tensor) -> None:
        self.draws += mask
        write_rows(self.height_at_draw_m, mask, env.sim.qpos[:, 2])

    def follow(self, env: Env) -> None:
        self.value.copy_(env.sim.qpos[:, 2:3])

    def cleared(self) -> list[torch.Tensor]:
        return [self.draws]

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), "draws": self.draws, "height_at_draw_m": self.height_at_draw_m}


class Calls(Term):
    """Observation that counts how often it was called; (num_envs, 1)."""

    def __init__(self, env: Env) -> None:
        self.calls = torch.zeros(env.num_envs, 1, device=env.device)

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002 (every observation takes the env)
        return self.calls.add_(1.0).clone()

    def state(self) -> dict[str, torch.Tensor]:
        return {"calls": self.calls}


class Height(LazySensor):
    """Sensor of a geom's height. After a physics step, the height is old until MuJoCo's forward runs.

    Attributes:
        height_m: The height, (num_envs, 1).
        num_measured: Number of measurements.
    """

    def __init__(self, env: Env, geom: int) -> None:
        self._position = env.sim.view("geom_xpos")[:, geom]
        self.height_m = torch.zeros(env.num_envs, 1, device=env.device)
        self.num_measured = 0

    def measure(self, env: Env) -> None:  # noqa: ARG002 (every sensor takes the env)
        self.num_measured += 1
        self.height_m.copy_(self._position[:, 2:])


class HeightOutside(Height):
    """:class:`Height`, kept out of CUDA graphs."""

    capturable = False


def height(env: Env, sensor: str) -> torch.Tensor:
    """Observation: the height that a sensor measures; (num_envs, 1)."""
    return env.sensor(sensor, Height).height_m.clone()


def height_reward(env: Env, sensor: str) -> torch.Tensor:
    """Reward: the height that a sensor measures."""
    return env.sensor(sensor, Height).height_m[:, 0].clone()


def add_mass(env: Env, mask: torch.Tensor, body: str, kg: float) -> None:
    """Event: increase the mass of a body."""
    column = env.sim.field("body_mass")[:, env.sim.model.body(body).id]
    column.add_(mask * kg)


def add_mass_by_env(env: Env, mask: torch.Tensor, body: str) -> None:
    """Event: add i kg to the mass of a body in env i."""
    column = env.sim.field("body_mass")[:, env.sim.model.body(body).id]
    write_rows(column, mask, column + env.env_ids)


def beyond(env: Env, limit_m: float = math.inf) -> torch.Tensor:
    """Termination: the first coordinate is above a limit; by default, there is no limit."""
    return env.sim.qpos[:, 0] > limit_m
