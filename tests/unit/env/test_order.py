"""Terms record when a step calls them. The order must equal the order in the documentation."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import torch
from legged import CONFIG, end_episodes, make

from mjlab_dist.config import (
    EventConfig,
    MetricConfig,
    ObservationConfig,
    RandomizationConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TerminationConfig,
)
from mjlab_dist.env import Env
from mjlab_dist.env.term import Command, Curriculum, Sensor, Term

PAGE = Path(__file__).parents[3] / "docs" / "task-reference.md"
CALLED: list[str] = []


def termination(env: Env) -> torch.Tensor:
    """Termination that records its call."""
    CALLED.append("terminations")
    return torch.zeros(env.num_envs, dtype=torch.bool)


def metric(env: Env) -> torch.Tensor:
    """Metric that records its call."""
    CALLED.append("metrics")
    return torch.zeros(env.num_envs)


def observation(env: Env) -> torch.Tensor:
    """Observation that records its call."""
    CALLED.append("observations")
    return torch.zeros(env.num_envs, 1)


def on_reset(env: Env, mask: torch.Tensor) -> None:  # noqa: ARG001
    """Event that records its call."""
    CALLED.append("reset events")


def on_interval(env: Env, mask: torch.Tensor) -> None:  # noqa: ARG001
    """Event that records its call."""
    CALLED.append("interval events")


class Reward(Term):
    """Reward that records its calls."""

    def __init__(self, env: Env) -> None:
        self.value = torch.zeros(env.num_envs)

    def __call__(self, env: Env) -> torch.Tensor:  # noqa: ARG002
        CALLED.append("rewards")
        return self.value

    def reset(self, mask: torch.Tensor) -> None:  # noqa: ARG002
        CALLED.append("memory")

    def metrics(self) -> dict[str, torch.Tensor]:
        CALLED.append("metrics")
        return {"value": self.value}


class Reading(Sensor):
    """Sensor that records its calls."""

    def __init__(self, env: Env) -> None:
        pass

    def update(self, env: Env) -> None:  # noqa: ARG002
        CALLED.append("sensors")

    def start(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002
        CALLED.append("sensor starts")


class Goal(Command):
    """Command that records its calls."""

    def __init__(self, env: Env) -> None:
        super().__init__(env, [], 1, (1.0, 1.0))

    def reset(self, mask: torch.Tensor) -> None:  # noqa: ARG002
        CALLED.append("commands")

    def draw(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002
        CALLED.append("commands")

    def follow(self, env: Env) -> None:  # noqa: ARG002
        CALLED.append("follow")


class Stage(Curriculum):
    """Curriculum that records its calls."""

    def __init__(self, env: Env) -> None:
        pass

    def episode_ends(self, env: Env, mask: torch.Tensor) -> None:  # noqa: ARG002
        CALLED.append("curricula")


def recorded(forward: bool) -> Env:
    """Build envs of a task with every kind of term. Terms and physics record the calls of their methods."""

    def func(name: str) -> dict[str, Any]:
        return {"func": f"{__name__}:{name}"}

    env = make(
        3,
        sim=_with(CONFIG.sim, forward_before_observation=forward),
        observations={"actor": {"it": ObservationConfig(**func("observation"))}},
        rewards={"it": RewardConfig(**func("Reward"), weight=1.0)},
        terminations={"it": TerminationConfig(**func("termination"))},
        metrics={"it": MetricConfig(**func("metric"))},
        events={
            "start": EventConfig(**func("on_reset")),
            "push": EventConfig(**func("on_interval"), when="interval"),
        },
        sensors={"it": TermConfig(**func("Reading"))},
        commands={"it": TermConfig(**func("Goal"))},
        curricula={"it": TermConfig(**func("Stage"))},
        randomizations={"it": RandomizationConfig(field="geom_friction", low=0.5, high=1.0, when="reset")},
    )
    _record(env._actions, "apply", "actions")
    _record(env.sim, "step", "physics")
    _record(env.sim, "reset", "physics reset")
    _record(env.sim, "forward", "forward")
    _record(env._randomizations, "reset", "randomizations")
    return env


def _with(sim: SimConfig, **changes: Any) -> SimConfig:
    return dataclasses.replace(sim, **changes)


def _record(owner: Any, method: str, name: str) -> None:
    call = getattr(owner, method)

    def recording(*args: Any) -> Any:
        CALLED.append(name)
        return call(*args)

    setattr(owner, method, recording)


def documented() -> list[str]:
    """Return the names in the second column of the diagram in the documentation."""
    block = PAGE.read_text().split("## The order of a step\n")[1].split("```\n")[1]
    return [line[16:].split("  ")[0].strip() for line in block.splitlines()]


def test_a_step_has_the_documented_order() -> None:
    env = recorded(forward=True)
    order = documented()
    for ends in ([True, False, True], [False] * 3):
        end_episodes(env, torch.tensor(ends))
        CALLED.clear()
        dones = env.step(torch.zeros(3, env.num_actions))[2]
        assert dones.tolist() == ends
        assert [name for name, _ in itertools.groupby(CALLED)] == order
        assert CALLED.count("observations") == CALLED.count("sensors") == 1
    CALLED.clear()
    env.reset()
    after = [name for name in order[order.index("physics reset") :] if name != "interval events"]
    assert [name for name, _ in itertools.groupby(CALLED)] == after


def test_sensors_measure_start_states_only_with_forward() -> None:
    env = recorded(forward=False)
    CALLED.clear()
    env.step(torch.zeros(3, env.num_actions))
    found = [name for name, _ in itertools.groupby(CALLED)]
    assert found == [name for name in documented() if name not in {"forward", "sensor starts"}]
