"""Compare a rollout that is recorded as CUDA graphs with an eager one. Fake graphs on the CPU replace CUDA graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import warp as wp
from every_task import config_of
from fake_graphs import FakeGraph, fake_graphs

from mjlab_dist.config import EventConfig, ObservationConfig, RewardConfig, SymmetryConfig, TrainConfig
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env
from mjlab_dist.env.columns import write_rows
from mjlab_dist.env.term import Term, not_capturable
from mjlab_dist.launch.verify.timing import measure_steps
from mjlab_dist.learn.capture import CapturedCall, GraphSequence, can_capture_steps
from mjlab_dist.learn.ppo import PPO
from mjlab_dist.learn.runner import Runner
from mjlab_dist.messages import listening

NUM_ENVS = 4

NUM_ITERATIONS = 4

TASKS = (
    "cartpole-swingup",
    "gym-half-cheetah",
    "arm-lift-cube",
    "humanoid-velocity-flat",
    "quadruped-tracking",
    "quadruped-velocity-rough",
    "everything",
)
"""One task of every kind. test_replay.py tests all tasks."""


def short(task: str) -> TrainConfig:
    """Return a config with few envs and short rollouts."""
    config = config_of(task)
    agent = dataclasses.replace(config.agent, num_steps_per_env=6, num_learning_epochs=1, num_mini_batches=2)
    return dataclasses.replace(config, num_envs=NUM_ENVS, total_num_envs=None, agent=agent)


def train(config: TrainConfig, *, captured: bool) -> tuple[list[dict[str, torch.Tensor]], Any]:
    """Train for some iterations. Return the state after each iteration, and the runner."""
    torch.manual_seed(0)
    env = Env(config.env, NUM_ENVS, "cpu")
    runner = Runner(env, config, Rank())
    if captured:
        runner._roll_out = CapturedCall(runner._take_steps, "rollout", "cpu", env.sim)
        assert isinstance(runner.alg, PPO)
        runner.alg._compute_returns = CapturedCall(runner.alg._compute_returns, "returns", "cpu")
    runner.alg.train_mode()
    env.episode_length_buf.copy_(env.max_episode_length - 4 - 3 * torch.arange(NUM_ENVS))
    obs, seen = env.get_observations(), []
    for iteration in range(1, NUM_ITERATIONS + 1):
        obs, sample = runner._iteration(obs, iteration)
        seen.append(
            {
                **env.state(),
                **{f"obs.{name}": group.clone() for name, group in obs.items()},
                **{f"actor.{name}": tensor.clone() for name, tensor in runner.alg.network_state("actor").items()},
                **{f"totals.{i}": total.clone() for i, total in enumerate(sample.totals)},
                "reward": sample.reward.clone(),
                "random": torch.get_rng_state(),
            }
        )
    return seen, runner


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_captured_rollout_equals_an_eager_one_bit_for_bit(task: str) -> None:
    config = short(task)
    eager, _ = train(config, captured=False)
    with fake_graphs():
        before = FakeGraph.num_captures
        replayed, runner = train(config, captured=True)
        assert FakeGraph.num_captures > before + config.agent.num_steps_per_env
        assert runner._roll_out.is_recorded
        assert isinstance(runner.alg, PPO)
        assert isinstance(runner.alg._compute_returns, CapturedCall)
        assert runner.alg._compute_returns.is_recorded
    for iteration, (mine, theirs) in enumerate(zip(replayed, eager, strict=True)):
        assert differing(mine, theirs) == [], f"iteration {iteration}"
    assert sum(seen["totals.0"] for seen in eager) >= NUM_ENVS, "no episode has ended"


def differing(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not equal bit for bit."""
    assert mine.keys() == theirs.keys()
    return [name for name in mine if not torch.equal(mine[name].nan_to_num(), theirs[name].nan_to_num())]


def test_control_steps_are_timed_eagerly_and_replayed() -> None:
    env = Env(short("cartpole-swingup").env, NUM_ENVS, "cpu")
    step = env.sim.step
    with fake_graphs():
        before = FakeGraph.num_captures
        physics_s, step_s = measure_steps(env)
        assert FakeGraph.num_captures > before
    assert env.sim.step == step
    assert min(physics_s, step_s) > 0


class Counts(Term):
    """A reward that counts in Python, which a graph does not record."""

    def __init__(self, _: Env) -> None:
        self.num_steps = 0

    def __call__(self, env: Env) -> torch.Tensor:
        self.num_steps += 1
        return env.sim.qpos[:, 0] + self.num_steps


def changed(task: str, **fields: Any) -> TrainConfig:
    config = short(task)
    return dataclasses.replace(config, env=dataclasses.replace(config.env, **fields))


@pytest.mark.slow
def test_a_step_that_depends_on_a_python_number_is_detected() -> None:
    config = changed("cartpole-balance", rewards={"counts": RewardConfig(func=f"{__name__}:Counts", weight=1.0)})
    eager, _ = train(config, captured=False)
    with fake_graphs():
        replayed, _ = train(config, captured=True)
    assert torch.equal(eager[0]["reward"], replayed[0]["reward"])
    assert not torch.equal(eager[-1]["reward"], replayed[-1]["reward"])


class CountsOutside(Counts):
    """:class:`Counts`, kept out of CUDA graphs."""

    capturable = False


@not_capturable
def speed_if_any(env: Env) -> torch.Tensor:
    """An observation that waits for the device, and reads a velocity that the env computes once per state."""
    speed = env.base().linear_velocity
    return speed if speed.abs().sum().item() > 0 else torch.zeros_like(speed)


class PushesInTurn(Term):
    """An event that pushes robots at every third call, with random velocities."""

    capturable = False

    def __init__(self, _: Env, num_resets: int) -> None:
        self.num_resets = num_resets
        self.num_calls = 0

    def reset(self, mask: torch.Tensor) -> None:  # noqa: ARG002 (every reset takes the mask)
        self.num_resets += 1

    def __call__(self, env: Env, mask: torch.Tensor) -> None:
        self.num_calls += 1
        if self.num_calls % 3 == 0:
            write_rows(env.sim.qvel, mask, torch.rand_like(env.sim.qvel) / self.num_resets)


@pytest.mark.slow
def test_terms_that_opt_out_run_between_the_graphs() -> None:
    config = changed(
        "quadruped-velocity-flat",
        rewards={"counts": RewardConfig(func=f"{__name__}:CountsOutside", weight=0.1)},
        terminations={},
        curricula={},
        commands={},
        sensors={},
        # No other term reads velocities, so nothing in the graphs computes them.
        observations={"actor": {"speed": ObservationConfig(func=f"{__name__}:speed_if_any")}},
        events={
            "pushes": EventConfig(
                func=f"{__name__}:PushesInTurn", params={"num_resets": 0}, when="interval", interval_s=(0.02, 0.05)
            ),
        },
    )
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, symmetry=SymmetryConfig()))
    eager, _ = train(config, captured=False)
    with fake_graphs():
        replayed, runner = train(config, captured=True)
        assert runner._roll_out.is_recorded
    for mine, theirs in zip(replayed, eager, strict=True):
        assert differing(mine, theirs) == []

    texts: list[str] = []
    runner.env.device = "cuda:0"
    with listening(lambda event: texts.append(event["text"])):
        assert can_capture_steps(runner.env, learner_can=True, is_main=True)
    (text,) = texts
    for name in ("rewards.counts", "observations.actor.speed", "events.pushes"):
        assert f"env.{name}" in text


def launch_by_itself(env: Env) -> torch.Tensor:
    """A reward that launches a Warp kernel directly, outside the recorded physics."""
    values = wp.zeros(env.num_envs, dtype=float, device="cpu")
    wp.launch(_one, dim=env.num_envs, inputs=[values], device="cpu")
    return wp.to_torch(values)


@pytest.mark.slow
def test_a_kernel_outside_every_graph_causes_a_warning_and_no_capture() -> None:
    rewards = {"kernel": RewardConfig(func=f"{__name__}:launch_by_itself", weight=1.0)}
    config = changed("cartpole-balance", rewards=rewards)
    warnings: list[str] = []
    with fake_graphs(), listening(lambda event: warnings.append(event["text"])):
        _, runner = train(config, captured=True)
    assert not runner._roll_out.is_recorded
    assert ["Simulation.record" in text for text in warnings] == [True]


@wp.kernel
def _one(values: wp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]
    values[wp.tid()] = 1.0


@pytest.mark.slow
@pytest.mark.parametrize("failing", [1, 3, 30])
def test_a_rollout_that_cannot_be_recorded_runs_eagerly_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Let one of the graphs of a rollout fail; before the 30th, several control steps have been recorded."""
    config = short("cartpole-balance")
    eager, _ = train(config, captured=False)
    warnings: list[str] = []
    end, num_ends = FakeGraph.capture_end, 0

    def fail(graph: FakeGraph) -> None:
        nonlocal num_ends
        end(graph)
        num_ends += 1
        if num_ends == failing:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with fake_graphs(), listening(lambda event: warnings.append(event["text"])):
        monkeypatch.setattr(FakeGraph, "capture_end", fail)
        tried, runner = train(config, captured=True)
    assert not runner._roll_out.is_recorded
    (text,) = warnings
    assert "not permitted" in text
    assert "\n" not in text
    assert torch.equal(eager[-1]["sim.qpos"], tried[-1]["sim.qpos"])


def test_another_capture_ends_after_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 refuses random numbers after a failed capture, until another capture has ended."""
    end, ended = FakeGraph.capture_end, []

    def fail_once(graph: FakeGraph) -> None:
        end(graph)
        ended.append(graph)
        if len(ended) == 1:
            raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeGraph, "capture_end", fail_once)
    with fake_graphs(), pytest.raises(RuntimeError, match="out of memory"), GraphSequence("cuda:0").recording():
        pass
    assert len(ended) == 2
