"""Metrics of episodes and reasons for their ends. The tests record every step to compute the expected values."""

from __future__ import annotations

import dataclasses
from typing import Any

import legged
import numpy as np
import pytest
import torch

from mjlab_dist.config import ActionConfig, MetricConfig, Reduction, RewardConfig, TerminationConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.commands import Velocity

NUM_ENVS = 12
NUM_STEPS = 60
REDUCTIONS: tuple[Reduction, ...] = ("mean", "sum", "max", "min", "last")

# rewards.action_size is the sum of the squared actions, which the test can compute in every step.
METRICS = {how: legged.metric("rewards:action_size", how) for how in REDUCTIONS}


TILTED = legged.termination("terminations:tilted", max_rad=0.15)

# Without random numbers, envs differ only in their actions.
STILL = {
    "actions": {"legs": ActionConfig(actuators=(".._leg",), scale=1.5, offset="home")},
    "events": {},
    "randomizations": {},
    "curricula": {},
}


def make(num_envs: int = NUM_ENVS, first_env_id: int = 0, **changes: Any) -> Env:
    changes = {**STILL, "metrics": METRICS, "rewards": {"alive": legged.reward("alive")}, **changes}
    torch.manual_seed(0)
    return Env(dataclasses.replace(legged.EVERYTHING, **changes), num_envs, "cpu", first_env_id)


@dataclasses.dataclass
class Played:
    """Values that a test recorded in every step of its envs."""

    values: np.ndarray
    """Sums of squared actions, (steps, num_envs)."""
    terminated: np.ndarray
    """Whether a termination ended the episode in this step, booleans (steps, num_envs)."""
    timed_out: np.ndarray
    """Whether the time limit ended the episode in this step, booleans (steps, num_envs)."""

    def episodes(self) -> list[tuple[int, int, int]]:
        """Return the env, the first step, and the step after the last step of every episode that ended."""
        found = []
        for env in range(self.values.shape[1]):
            ends = np.flatnonzero((self.terminated | self.timed_out)[:, env]) + 1
            found += [(env, int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False)]
        return found


def play(env: Env, num_steps: int = NUM_STEPS) -> Played:
    generator = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(num_steps):
        actions = torch.randn(env.num_envs, env.num_actions, generator=generator)
        _, _, dones, extras = env.step(actions)
        rows.append((actions.square().sum(dim=1), dones & ~extras["time_outs"], extras["time_outs"]))
    return Played(*(torch.stack(column).numpy() for column in zip(*rows, strict=True)))


def reduced(how: Reduction, values: np.ndarray) -> float:
    return values[-1] if how == "last" else float(getattr(np, how)(values))


def test_metrics_are_reduced_over_each_episode() -> None:
    env = make()
    played = play(env)
    totals, episodes = env.pop_episode_totals(), played.episodes()
    assert totals.episodes == len(episodes) > NUM_ENVS
    assert len({b - a for _, a, b in episodes}) > 1  # with different lengths, a mean of means would be wrong
    for name, total in zip(env.metric_names, totals.metrics, strict=True):
        if name.startswith("metric/"):
            how = name.removeprefix("metric/")
            expected = sum(reduced(how, played.values[a:b, i]) for i, a, b in episodes)  # pyright: ignore[reportArgumentType]
            assert float(total) == pytest.approx(expected, rel=1e-4)


def test_two_halves_sum_to_the_whole() -> None:
    """The totals of two ranks add up to the totals of one rank with all envs, as the metrics of a run require."""
    whole, halves = make(), [make(NUM_ENVS // 2, first) for first in (0, NUM_ENVS // 2)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(NUM_STEPS):
        actions = torch.randn(NUM_ENVS, whole.num_actions, generator=generator)
        whole.step(actions)
        for env, part in zip(halves, actions.chunk(2), strict=True):
            env.step(part)
    whole_totals, parts = whole.pop_episode_totals(), [env.pop_episode_totals() for env in halves]
    assert whole_totals.episodes > 0
    assert whole_totals.terminations.tolist() == (parts[0].terminations + parts[1].terminations).tolist()
    # Compare only metrics of actions. The other metrics depend on commands, which are sampled at random.
    of_actions = slice(len(METRICS))
    both = (parts[0].metrics + parts[1].metrics)[of_actions]
    assert whole_totals.metrics[of_actions].tolist() == pytest.approx(both.tolist(), rel=1e-3)


def test_reasons_are_counted() -> None:
    tilted = legged.termination("terminations:tilted", max_rad=0.3)
    env = make(terminations={**legged.EVERYTHING.terminations, "tilted": tilted})
    seen = dict.fromkeys(env.termination_names, 0)
    for _ in range(NUM_STEPS):
        _, _, dones, _ = env.step(torch.randn(NUM_ENVS, env.num_actions))
        outcomes = env.episode_outcomes()
        for name in seen:
            seen[name] += int(outcomes[f"termination/{name}"][dones].sum())
        some = torch.stack([outcomes[f"termination/{name}"] for name in seen]).amax(dim=0)
        assert (some.bool() == dones).all()
    assert env.pop_episode_totals().terminations.tolist() == list(seen.values())
    assert seen["time_limit"] > 0
    assert sum(count > 0 for count in seen.values()) > 1


def test_a_termination_can_cut_off_without_a_failure() -> None:
    failing, cut = make(terminations={"tilted": TILTED}), make(terminations={"tilted": TILTED.as_time_out()})
    ends = [play(env) for env in (failing, cut)]
    assert ends[0].terminated.any()
    assert not ends[1].terminated.any()
    assert (ends[1].timed_out == (ends[0].terminated | ends[0].timed_out)).all()
    assert cut.pop_episode_totals().terminations[1] > 0


def test_episodes_that_do_not_count_add_no_metrics() -> None:
    env = make()
    env.stagger()
    play(env, 3)
    totals = env.pop_episode_totals()
    assert totals.episodes == 0
    assert not totals.metrics.any()


def test_tracking_errors_are_those_of_the_velocity() -> None:
    env = make(terminations={})
    expected = []
    for _ in range(env.max_episode_length - 1):
        command = env.command("velocity")[:, :2].clone()
        env.step(torch.randn(NUM_ENVS, env.num_actions))
        expected.append((command - env.base().level_velocity[:, :2]).norm(dim=1))
    measured = env.episode_outcomes()["command/velocity/error_m_s"]
    assert torch.allclose(measured, torch.stack(expected).mean(dim=0), rtol=1e-4)


def test_metrics_of_a_term_outside_of_graphs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = make(terminations={})
    monkeypatch.setattr(Velocity, "capturable", False)
    outside = make(terminations={})
    for env in (inside, outside):
        torch.manual_seed(1)
        play(env, 5)
    measured = [env.episode_outcomes() for env in (inside, outside)]
    assert measured[0]["command/velocity/error_rad_s"].any()
    assert all(torch.equal(measured[0][name], measured[1][name]) for name in measured[0])


def column(env: Env) -> torch.Tensor:
    return env.sim.qpos[:, :1]


def double(env: Env) -> torch.Tensor:
    return env.sim.qpos[:, 0].double()


@pytest.mark.parametrize(
    ("kind", "config", "given"),
    [
        ("rewards", RewardConfig(func=f"{__name__}:double", weight=1.0), "float64"),
        ("terminations", TerminationConfig(func=f"{__name__}:double"), "float64"),
        ("metrics", MetricConfig(func=f"{__name__}:column"), "float32"),
    ],
)
def test_a_wrong_result_names_its_term(kind: str, config: Any, given: str) -> None:
    changes: dict[str, Any] = {kind: {"odd": config}}
    env = make(**changes)
    with pytest.raises(UserError) as refusal:
        env.step(torch.zeros(NUM_ENVS, env.num_actions))
    assert f"{kind}.odd" in str(refusal.value)
    assert given in str(refusal.value)
    assert f"({NUM_ENVS},)" in str(refusal.value)
