"""The player steps envs, and executes requests of viewers."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.commands import Velocity
from mjlab_dist.policies.view.player import Frame, Player

LEGGED = "quadruped-velocity-flat"


class Constant:
    """A policy with constant actions. It records its observations."""

    def __init__(self, env: Env, action: float = 0.25) -> None:
        self.action = torch.full((env.num_envs, env.num_actions), action)
        self.observed: dict[str, np.ndarray] = {}
        self.ended = 0

    def __call__(self, obs: TensorDict, /) -> torch.Tensor:
        self.observed = {name: obs[name].numpy().copy() for name in ("actor", "critic") if name in obs.keys()}  # noqa: SIM118
        return self.action

    def reset(self, dones: torch.Tensor, /) -> None:
        self.ended += int(dones.sum())


@pytest.fixture
def player(build_env: Callable[[str], Env]) -> Player:
    """A player of carts with constant actions."""
    env = build_env("cartpole-balance")
    return Player(env, Constant(env))


def test_a_held_command_is_what_the_policy_observes(build_env: Callable[[str], Env]) -> None:
    env = build_env(LEGGED)
    policy = Constant(env)
    player = Player(env, policy)
    player.hold_command("velocity", [0.4, -0.2, 0.6])
    player.step()
    player.reset()  # new episodes sample commands, which the held command must replace
    frame = player.step()
    assert np.allclose(frame.commands["velocity"], [0.4, -0.2, 0.6])
    player.step()
    columns = env.observation_columns()["actor"]["command"]
    seen = policy.observed["actor"][:, columns]
    scale = env.cfg.observations["actor"]["command"].scale
    assert np.allclose(seen, np.array([0.4, -0.2, 0.6]) * np.array(scale), atol=1e-6)
    # With a heading, the yaw rate turns the robots towards it
    player.hold_command("velocity", [0.4, 0.0, 0.0], heading_rad=0.5)
    player.step()
    frame = player.step()
    assert (np.abs(frame.commands["velocity"][:, 2]) > 1e-3).all()
    command = env.find_command("velocity")
    assert isinstance(command, Velocity)
    assert command.has_heading.all()
    # The command is sampled again, so its value differs between envs
    player.hold_command("velocity", None)
    frame = player.step()
    assert len(np.unique(frame.commands["velocity"][:, 0])) > 1


def test_a_held_pose_moves_the_target_and_its_marker(build_env: Callable[[str], Env]) -> None:
    env = build_env("arm-reach")
    name = next(iter(env.cfg.commands))
    player = Player(env, Constant(env))
    middle = env.find_command(name).ranges.mean(dim=1).tolist()
    player.hold_command(name, middle)
    frame = player.step()
    assert np.allclose(frame.commands[name], frame.commands[name][0])
    player.hold_command(name, [middle[0] + 0.05, *middle[1:]])
    moved = player.step()
    assert np.allclose(moved.commands[name][:, 0] - frame.commands[name][:, 0], 0.05, atol=1e-6)
    assert np.allclose(moved.state["mocap_pos"][:, 0, :3], moved.commands[name][:, :3], atol=1e-6)
    player.hold_command(name, None)
    player.step()


def test_the_player_pauses_steps_once_and_continues(
    player: Player, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    player.start()
    wait_for(lambda: player.frame.step > 3)
    player.pause()
    player.reset().result()  # after this, the current step has ended
    at = player.frame.step
    player.step_once()
    wait_for(lambda: player.frame.step > at)
    player.push().result()
    assert player.frame.step == at + 1, "exactly one step"
    player.pause(paused=False)
    wait_for(lambda: player.frame.step > at + 3)
    player.stop()
    assert player.failure is None


def test_an_error_of_a_step_is_kept(
    build_env: Callable[[str], Env], wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    env = build_env("cartpole-balance")
    policy = Constant(env)
    policy.action = torch.zeros(1, 99)
    player = Player(env, policy)
    player.start()
    wait_for(lambda: player.failure is not None)
    assert isinstance(player.failure, RuntimeError)


def test_a_reset_starts_new_episodes_and_resets_the_policy(build_env: Callable[[str], Env]) -> None:
    env = build_env("cartpole-balance")
    policy = Constant(env)
    player = Player(env, policy)
    for _ in range(5):
        player.step()
    assert (player.frame.episode_steps == 5).all()
    ended = policy.ended
    player.reset()
    assert (player.step().episode_steps == 1).all()
    assert policy.ended >= ended + env.num_envs
    steps = [one.step for one in player.history]
    assert steps == sorted(set(steps))


def test_a_speed_that_never_ends_a_step_is_refused(player: Player) -> None:
    for speed in (1e-320, 0.0, -1.0, math.nan, math.inf):
        with pytest.raises(AssertionError):
            player.set_speed(speed)
    assert player.speed == 1.0


def test_requests_that_arrive_meanwhile_do_not_delay_a_step(player: Player) -> None:
    handled = list[int]()

    def ask_again() -> None:
        handled.append(len(handled))
        if len(handled) < 100:
            player._ask(ask_again)

    player._ask(ask_again)
    assert player.step().step == 1
    assert len(handled) == 1


def test_the_history_is_never_empty(player: Player) -> None:
    class Watched(collections.deque[Frame]):
        def pop(self) -> Frame:  # pyright: ignore[reportIncompatibleMethodOverride]
            frame = super().pop()
            assert self, "another thread, which draws the charts, sees no frame"
            return frame

    player.history = Watched(player.history, maxlen=10)
    player.reset()
    frame = player.step()
    assert [one.step for one in player.history] == [0, 1]
    assert player.history[-1] is frame


@pytest.mark.parametrize("task", [LEGGED, "cartpole-balance"])
def test_a_push_changes_the_velocity_of_the_robot(task: str, build_env: Callable[[str], Env]) -> None:
    env = build_env(task)
    player = Player(env, Constant(env))
    before = player.frame.state["qvel"]
    player.pause()
    player.push(2.0)
    with torch.inference_mode():
        player._obey()
    change = player.frame.state["qvel"] - before
    if task == LEGGED:
        assert np.allclose(np.linalg.norm(change[:, :2], axis=1), 2.0, atol=1e-5)
        assert np.allclose(change[:, 2:], 0.0)
    else:
        assert (np.abs(change) > 1e-4).all(), "the push moves both joints"
        assert np.abs(change).max() < 20


def test_actions_come_from_the_chosen_source(player: Player) -> None:
    assert (player.step().actions == 0.25).all()
    player.source = "zero"
    assert (player.step().actions == 0.0).all()
    player.source = "random"
    first, second = player.step().actions, player.step().actions
    assert np.abs(first).max() <= 1.0
    assert (first != second).all()


def test_another_checkpoint_is_loaded_or_the_policy_kept(build_env: Callable[[str], Env]) -> None:
    env = build_env("cartpole-balance")

    def load(path: Path) -> Constant:
        if path.name != "model_2.pt":
            raise UserError(f"checkpoint {path}: is damaged")
        return Constant(env, 0.5)

    player = Player(env, Constant(env), load)
    loaded = player.load(Path("model_2.pt"))
    assert (player.step().actions == 0.5).all()
    assert loaded.exception() is None
    failed = player.load(Path("model_3.pt"))
    assert (player.step().actions == 0.5).all()
    assert isinstance(failed.exception(), UserError)


def test_frames_have_the_reward_of_each_term(build_env: Callable[[str], Env]) -> None:
    env = build_env(LEGGED)
    player = Player(env, Constant(env))
    player.reset()
    first = player.step()
    assert first.rewards.shape == (len(env.cfg.rewards), env.num_envs)
    second = player.step()
    running = second.episode_steps == 2
    assert running.any()
    assert np.allclose((first.rewards + second.rewards).sum(axis=0)[running], second.returns[running], atol=1e-5)
