"""The gym tasks in float32 match Gymnasium's v5 envs, which use float64 and, in these tests, the Newton solver."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from legged import assert_resumes

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import EnvConfig, TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.sim import load_model
from mjlab_dist_tasks.gym import config as tasks

NUM_ENVS = 8
NUM_STEPS = 200

TOLERANCE = 1e-3
"""Tolerance of relative errors. An error of an observation term is divided by the term's largest absolute value, and an
error of a reward by the largest absolute value of the reward's terms. Both divisors are at least 1."""


class Task(NamedTuple):
    config: Callable[[], TrainConfig]
    gym_id: str
    touches: bool = True
    terminates: bool = True

    @property
    def env(self) -> EnvConfig:
        return self.config().env


HOPPER = Task(tasks.hopper, "Hopper-v5")
CHEETAH = Task(tasks.half_cheetah, "HalfCheetah-v5", terminates=False)
WALKER = Task(tasks.walker2d, "Walker2d-v5")
ANT = Task(tasks.ant, "Ant-v5")
HUMANOID = Task(tasks.humanoid, "Humanoid-v5")
PENDULUM = Task(tasks.inverted_pendulum, "InvertedPendulum-v5", touches=False)
REACHER = Task(tasks.reacher, "Reacher-v5", touches=False, terminates=False)

TASKS = [HOPPER, CHEETAH, WALKER, ANT, HUMANOID, PENDULUM, REACHER]


def parametrize(*chosen: Task, slow: tuple[Task, ...] = ()) -> Any:
    """Run a test for some or all tasks. For the tasks in `slow`, the test is marked as slow."""
    tasks = [pytest.param(task, marks=pytest.mark.slow if task in slow else ()) for task in chosen or TASKS]
    return pytest.mark.parametrize("task", tasks, ids=lambda task: task.gym_id)


@pytest.fixture(autouse=True, scope="module")
def _quiet(engine: str) -> Iterator[None]:  # noqa: ARG001 (clears the caches before the other engine is tested)
    # MuJoCo warns about an attribute in Gymnasium's cheetah, and would write a log file to the working directory.
    mujoco.set_mju_user_warning(lambda _: None)
    yield
    mujoco.set_mju_user_warning(None)
    in_any_state.cache_clear()
    oracles.cache_clear()


def make(config: EnvConfig, num_envs: int = NUM_ENVS, seed: int = 0) -> Env:
    torch.manual_seed(seed)
    return Env(config, num_envs, "cpu")


def with_cone(config: EnvConfig, cone: Any) -> EnvConfig:
    options = dataclasses.replace(config.sim.options, cone=cone)
    return dataclasses.replace(config, sim=dataclasses.replace(config.sim, options=options))


@functools.cache
def in_any_state(task: Task) -> Env:
    """Return envs that several tests share, in any state. Each test resets them."""
    return make(task.env)


@functools.cache
def oracles(gym_id: str, cone: mujoco.mjtCone = mujoco.mjtCone.mjCONE_PYRAMIDAL) -> list[Any]:
    """Return Gymnasium's envs that comparisons share. Each comparison first resets their data."""
    return [oracle(gym_id, cone) for _ in range(NUM_ENVS)]


def oracle(gym_id: str, cone: mujoco.mjtCone = mujoco.mjtCone.mjCONE_PYRAMIDAL) -> Any:
    env: Any = gymnasium.make(gym_id).unwrapped
    env.model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    env.model.opt.cone = cone
    env.reset(seed=0)
    return env


class Compared(NamedTuple):
    """Results of a comparison."""

    errors: np.ndarray
    """Largest relative error of observations and rewards in each step, (steps, envs), divided as in TOLERANCE."""
    with_contact: int
    terminated: int


def follow(env: Env, oracles: list[Any], num_steps: int, clip: bool = True, synchronise: bool = True) -> Compared:
    """Step our env and Gymnasium's envs from the same states with the same actions, and compare all results.

    Before each step, joint positions, velocities and the solver's warm start are copied to Gymnasium's envs.
    Gymnasium's envs keep their own poses of the previous step, and compute some rewards from these poses. When an
    episode ends, the start state of our next episode is copied too.
    """
    rng = np.random.default_rng(1)
    low, high = oracles[0].action_space.low, oracles[0].action_space.high
    for one, qpos, qvel in zip(oracles, *states(env), strict=True):
        start(one, qpos, qvel)
    errors = [observation_errors(env, env.get_observations()["actor"], [one._get_obs() for one in oracles])]
    with_contact = terminated = 0
    for _ in range(num_steps):
        actions = rng.uniform(1.3 * low, 1.3 * high, (len(oracles), len(low))).astype(np.float32)
        if synchronise:
            for one, *state in zip(
                oracles, *states(env), env.sim.physics["qacc_warmstart"].double().numpy(), strict=True
            ):
                one.data.qpos[:], one.data.qvel[:], one.data.qacc_warmstart[:] = state
        observed, rewards, dones, _ = env.step(torch.from_numpy(actions))
        theirs = [one.step(np.clip(a, low, high) if clip else a) for one, a in zip(oracles, actions, strict=True)]
        ends = [end for _, _, end, _, _ in theirs]
        assert env.terminated.tolist() == ends
        with_contact += sum(one.data.ncon > 0 for one in oracles)
        terminated += sum(ends)
        reward_errors = [
            abs(mine - reward) / max(1.0, *map(abs, info.values()))
            for mine, (_, reward, _, _, full) in zip(rewards.tolist(), theirs, strict=True)
            if (info := {key: value for key, value in full.items() if key.startswith("reward_")})
        ]
        for one, end, qpos, qvel in zip(oracles, dones.tolist(), *states(env), strict=True):
            if end:
                start(one, qpos, qvel)
        expected = [
            one._get_obs() if end else obs for one, end, (obs, *_) in zip(oracles, dones.tolist(), theirs, strict=True)
        ]
        errors.append(np.maximum(observation_errors(env, observed["actor"], expected), reward_errors))
    return Compared(np.stack(errors), with_contact, terminated)


def states(env: Env) -> tuple[np.ndarray, np.ndarray]:
    return env.sim.qpos.double().numpy(), env.sim.qvel.double().numpy()


def start(one: Any, qpos: np.ndarray, qvel: np.ndarray) -> None:
    """Start an episode of Gymnasium's env from a given state, as reset does from a random state."""
    mujoco.mj_resetData(one.model, one.data)
    one.set_state(qpos, qvel)


def observation_errors(env: Env, mine: torch.Tensor, theirs: list[np.ndarray]) -> np.ndarray:
    """Return the largest relative error of each env, (num_envs,)."""
    expected = np.stack(theirs)
    assert mine.shape == expected.shape
    found = [np.zeros(len(expected))]
    for columns in env.observation_columns()["actor"].values():
        wrong = np.abs(mine.double().numpy() - expected)[:, columns]
        found.append(wrong.max(axis=1) / np.abs(expected[:, columns]).max(axis=1).clip(min=1.0))
    return np.max(found, axis=0)


# Steps and resets


@parametrize(HOPPER, CHEETAH, WALKER, HUMANOID, PENDULUM, REACHER, slow=(HUMANOID,))
def test_every_step_equals_that_of_gymnasium(task: Task) -> None:
    found = follow(make(task.env), oracles(task.gym_id), NUM_STEPS)
    assert found.errors.max() < TOLERANCE
    assert (found.with_contact > 100) == task.touches
    assert (found.terminated > 5) == task.terminates


@pytest.mark.slow
def test_every_step_of_the_ant_equals_that_of_gymnasium_with_elliptic_friction_cones() -> None:
    env = make(with_cone(ANT.env, "elliptic"))
    found = follow(env, oracles(ANT.gym_id, mujoco.mjtCone.mjCONE_ELLIPTIC), NUM_STEPS)
    # Forces of about 100 N have a relative error of 1e-4, which is 0.01 N. Their components are clipped to 1 N, so the
    # relative error of a clipped force is up to 1e-2.
    assert found.errors.max() < 10 * TOLERANCE
    assert found.with_contact > 100
    assert found.terminated > 5


@pytest.mark.slow
def test_steps_of_the_ant_equal_those_of_gymnasium_with_pyramidal_cones(engine: str) -> None:
    """With MuJoCo Warp, only half of them do.

    For a steep capsule, MuJoCo Warp and MJX orient the friction pyramid differently than MuJoCo's C code.
    See google-deepmind/mujoco#2774.
    """
    found = follow(make(ANT.env), oracles(ANT.gym_id), NUM_STEPS)
    assert np.mean(found.errors < 10 * TOLERANCE) > (0.5 if engine == "warp" else 0.99)
    assert found.with_contact > 100


def test_without_clipping_costs_use_the_raw_action() -> None:
    config = HOPPER.env
    (name, action), *_ = config.actions.items()
    config = dataclasses.replace(config, actions={name: dataclasses.replace(action, clip=None)})
    found = follow(make(config), oracles(HOPPER.gym_id), 30, clip=False)
    assert found.errors.max() < TOLERANCE


@pytest.mark.parametrize(("task", "num_steps"), [(HOPPER, 10), (CHEETAH, 10), (PENDULUM, 200), (REACHER, 200)])
def test_free_trajectories_stay_close_to_gymnasium(task: Task, num_steps: int) -> None:
    """Compare so few steps that contacts do not amplify rounding errors."""
    found = follow(make(task.env), oracles(task.gym_id), num_steps, synchronise=False)
    assert found.errors.max() < 10 * TOLERANCE


# The distribution of 1,000 start states


def assert_uniform(x: np.ndarray, most: float) -> None:
    assert np.abs(x).max() <= most * (1 + 1e-5)
    assert np.abs(x).max() > 0.99 * most
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=0.1 * most)
    np.testing.assert_allclose(x.std(axis=0), most / np.sqrt(3), rtol=0.08)


def assert_normal(x: np.ndarray, std: float) -> None:
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=0.15 * std)
    np.testing.assert_allclose(x.std(axis=0), std, rtol=0.1)
    assert np.mean(np.abs(x) < std) == pytest.approx(0.683, abs=0.02)


@parametrize(HOPPER, CHEETAH, WALKER, ANT, HUMANOID, PENDULUM)
def test_start_states_have_the_distribution_of_gymnasium(task: Task) -> None:
    theirs = oracle(task.gym_id)
    qpos, qvel = states(make(task.env, 1000))
    assert_uniform(qpos - theirs.init_qpos, theirs._reset_noise_scale)
    (assert_normal if task in (CHEETAH, ANT) else assert_uniform)(qvel - theirs.init_qvel, theirs._reset_noise_scale)
    # Samples of Gymnasium's env pass the same test, so the test checks the right distribution.
    drawn = [(theirs.reset()[0], theirs.data.qpos.copy(), theirs.data.qvel.copy()) for _ in range(1000)]
    assert_uniform(np.stack([q for _, q, _ in drawn]) - theirs.init_qpos, theirs._reset_noise_scale)
    (assert_normal if task in (CHEETAH, ANT) else assert_uniform)(
        np.stack([v for *_, v in drawn]), theirs._reset_noise_scale
    )


def test_the_reachers_target_is_anywhere_on_a_disk() -> None:
    qpos, qvel = states(make(REACHER.env, 1000))
    assert_uniform(qpos[:, :2], 0.1)
    assert_uniform(qvel[:, :2], 0.005)
    assert not qvel[:, 2:].any()
    radius, angle = np.hypot(*qpos[:, 2:].T), np.arctan2(*qpos[:, 2:].T)
    # Uniform on a disk: the square of the radius is uniform, and so is the angle.
    assert_uniform((radius / 0.2)[:, None] ** 2 * 2 - 1, 1.0)
    assert_uniform(angle[:, None], np.pi)


@parametrize()
def test_episodes_are_as_long_as_in_gymnasium(task: Task) -> None:
    env = in_any_state(task)
    env.reset()
    spec = gymnasium.spec(task.gym_id)
    assert env.max_episode_length == spec.max_episode_steps
    assert env.step_dt_s == pytest.approx(oracles(task.gym_id)[0].dt)
    env.episode_length_buf.fill_(env.max_episode_length - 2)
    assert not env.step(torch.zeros(NUM_ENVS, env.num_actions))[2].any()
    _, _, dones, extras = env.step(torch.zeros(NUM_ENVS, env.num_actions))
    assert dones.all()
    assert extras["time_outs"].all()
    assert not env.terminated.any()


# The env


@parametrize()
def test_observations_and_actions_have_the_sizes_of_gymnasium(task: Task) -> None:
    env, theirs = in_any_state(task), oracles(task.gym_id)[0]
    assert env.get_observations()["actor"].shape[1:] == theirs.observation_space.shape
    assert (env.num_actions,) == theirs.action_space.shape
    (action,) = task.env.actions.values()
    assert action.clip == (pytest.approx(theirs.action_space.low[0]), pytest.approx(theirs.action_space.high[0]))


@parametrize()
def test_the_model_equals_that_of_gymnasium(task: Task) -> None:
    mine, theirs = load_model(task.env.sim.model), oracles(task.gym_id)[0].model
    for name in ("body_mass", "body_inertia", "body_ipos", "dof_armature", "dof_damping", "geom_friction", "geom_size"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), rtol=1e-12, atol=1e-15)
    assert mine.opt.integrator == theirs.opt.integrator
    assert mine.opt.timestep == theirs.opt.timestep
    assert [mine.actuator(i).trnid[0] for i in range(mine.nu)] == [
        theirs.actuator(i).trnid[0] for i in range(theirs.nu)
    ]


@parametrize(slow=(HUMANOID,))
def test_nothing_overflows(task: Task) -> None:
    """Drive motors with maximum inputs of random signs. This moves robots more violently than any policy."""
    env = make(task.env, 16)
    actions = torch.zeros(16, env.num_actions)
    for step in range(100):
        if step % 8 == 0 or step > 60:
            actions = 10.0 * torch.randn(16, env.num_actions).sign()
        env.step(actions)
    assert not env.sim.overflow.any()


@pytest.mark.usefixtures("engine_of_gpus")
@parametrize(HUMANOID)
def test_a_step_never_waits(task: Task) -> None:
    env = in_any_state(task)
    env.reset()
    actions = torch.zeros(NUM_ENVS, env.num_actions)
    with HostSyncs() as syncs:
        env.step(actions)
    assert syncs.num_ops > 20
    assert syncs.found == []


@parametrize(HOPPER, ANT, HUMANOID)
def test_a_saved_state_continues_identically(task: Task) -> None:
    assert_resumes(lambda seed: make(task.env, seed=seed), 5, 15)
