"""Our vector envs for Gymnasium pass Gymnasium's checks and equal Gymnasium's envs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils import env_checker

import mjlab_dist.gymnasium
from mjlab_dist.errors import UserError

GYM_IDS = {
    "gym-ant": "Ant-v5",
    "gym-half-cheetah": "HalfCheetah-v5",
    "gym-hopper": "Hopper-v5",
    "gym-humanoid": "Humanoid-v5",
    "gym-inverted-pendulum": "InvertedPendulum-v5",
    "gym-reacher": "Reacher-v5",
    "gym-walker2d": "Walker2d-v5",
}

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def make_vec() -> Any:
    """Function that makes vector envs on the CPU. They are closed after the last test of this file."""
    made: list[Any] = []

    def make(task: str, num_envs: int = 4, **fields: Any) -> Any:
        made.append(gymnasium.make_vec(f"mjlab_dist/{task}", num_envs, gpu_ids=None, **fields))
        return made[-1]

    yield make
    for envs in made:
        envs.close()


class FirstEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Env 0 of a vector env, for checks of single envs. Its episodes are long enough that none ends during a check."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        observations, info = self.envs.reset(seed=seed, options=options)
        return observations[0], info

    def step(self, action: np.ndarray) -> Any:
        results = self.envs.step(np.tile(action, (self.envs.num_envs, 1)))
        assert not results[4]
        return (results[0][0], *(column[0].item() for column in results[1:4]), {})


def test_every_task_is_registered() -> None:
    ids = {spec.id for spec in gymnasium.registry.values() if spec.namespace == "mjlab_dist"}
    assert ids == {f"mjlab_dist/{task}" for task in mjlab_dist.gymnasium.task_names()}


def test_gymnasiums_checks_of_single_envs_pass(make_vec: Make) -> None:
    env = FirstEnv(make_vec("cartpole-balance"))
    env_checker.check_reset_seed_determinism(env)
    env_checker.check_step_determinism(env)
    env_checker.check_returned_data_not_reused(env)
    env_checker.check_reset_return_type(env)
    env_checker.check_space_limit(env.observation_space, "observation")


def test_results_are_in_the_spaces(make_vec: Make) -> None:
    envs = make_vec("quadruped-velocity-flat", group=None)
    assert set(envs.single_observation_space.spaces) == {"actor", "critic"}
    observations, _ = envs.reset(seed=1)
    assert observations in envs.observation_space
    observations, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
    assert observations in envs.observation_space
    assert rewards.shape == terminated.shape == truncated.shape == (4,)
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.SAME_STEP


@pytest.mark.parametrize("task", GYM_IDS)
@pytest.mark.slow
def test_spaces_are_those_of_gymnasiums_env(task: str, make_vec: Make) -> None:
    ours = make_vec(task, 1)
    theirs: Any = gymnasium.make(GYM_IDS[task])
    assert ours.single_observation_space.shape == theirs.observation_space.shape
    np.testing.assert_array_equal(ours.single_action_space.low, theirs.action_space.low)
    np.testing.assert_array_equal(ours.single_action_space.high, theirs.action_space.high)


def test_steps_are_those_of_gymnasiums_env(make_vec: Make) -> None:
    # Copy the start state of Gymnasium's env to our env
    ours, theirs = make_vec("gym-inverted-pendulum", 1), gymnasium.make("InvertedPendulum-v5")
    ours.reset(seed=1)
    expected, _ = theirs.reset(seed=1)
    state = ours.envs.state()
    data: Any = theirs.unwrapped
    state["sim.qpos"][0] = torch.from_numpy(data.data.qpos)
    state["sim.qvel"][0] = torch.from_numpy(data.data.qvel)
    ours.envs.set_state(state)
    # Step until the pendulum falls
    for action in np.linspace(-0.3, 0.3, 60, dtype=np.float32).reshape(-1, 1):
        observations, rewards, terminated, _, info = ours.step(action.reshape(1, 1))
        expected, reward, has_fallen, _, _ = theirs.step(action)
        assert terminated[0] == has_fallen
        assert rewards[0] == reward
        observed = info["final_obs"][0] if has_fallen else observations[0]
        np.testing.assert_allclose(observed, expected, atol=1e-3)
        if has_fallen:
            assert info["_final_obs"].all()
            return
    pytest.fail("the pendulum did not fall")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"render_mode": "human"}, "render_mode"),
        ({"group": "actr"}, "actor"),
        ({"num_env": 3}, "num_env"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_wrong_arguments_are_refused(fields: dict[str, Any], word: str, make_vec: Make) -> None:
    with pytest.raises(UserError, match=word):
        make_vec("cartpole-balance", **fields)


def test_options_are_refused(make_vec: Make) -> None:
    with pytest.raises(UserError, match="options"):
        make_vec("cartpole-balance").reset(options={"gravity": 3.0})


def test_pictures_of_all_envs(make_vec: Make) -> None:
    envs = make_vec("cartpole-balance", 2, render_mode="rgb_array")
    envs.reset(seed=1)
    pictures = envs.render()
    assert pictures is not None
    assert [picture.shape[2] for picture in pictures] == [3, 3]
    assert all(picture.std() > 0 for picture in pictures)
    assert make_vec("cartpole-balance").render() is None
