"""The batched env. Its episodes are compared with episodes that the test computes from steps of MuJoCo's C code."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import legged
import mujoco
import numpy as np
import pytest
import torch
from env_terms_for_test import Ended
from legged import EVERYTHING, event, observe

from mjlab_dist.authoring.check.host_syncs import HostReads, HostSyncs
from mjlab_dist.config import (
    ActionConfig,
    CaptureMode,
    EnvConfig,
    ObservationConfig,
    RewardConfig,
    SimConfig,
    TermConfig,
    TerminationConfig,
    TerrainConfig,
    TerrainPartConfig,
)
from mjlab_dist.env import Env, EpisodeTotals
from mjlab_dist.errors import UserError
from mjlab_dist.sim.names import find_names
from mjlab_dist.sim.terrain import Terrain, start_positions

TERMS = "env_terms_for_test"
CARTPOLE = SimConfig(model="mjlab_dist_tasks.cartpole:cartpole.xml", njmax=2, nconmax=0)
BOX = SimConfig(model=str(Path(__file__).parents[2] / "data" / "models" / "box.xml"), njmax=16, nconmax=8)
DRAGGED = SimConfig(model=str(Path(__file__).parents[2] / "data" / "models" / "dragged_box.xml"), njmax=19, nconmax=8)

NUM_ENVS = 8
MAX_STEPS = 40
LIMIT = 0.15
WEIGHTS = np.array([2.0, 0.5, -0.1])

CONFIG = EnvConfig(
    sim=CARTPOLE,
    episode_length_s=0.4,
    actions={"force": ActionConfig(actuators=("force",))},
    observations={
        "actor": {
            "cart": observe("joint_position", {"joint": "slider"}),
            "pole_velocity": observe("joint_velocity", {"joint": "hinge"}),
        },
        "critic": {
            "pole": observe("joint_position", {"joint": "hinge"}),
            "tip": ObservationConfig(func=f"{TERMS}:geom_position", params={"geom": 5}),
        },
    },
    rewards={
        "position": RewardConfig(func=f"{TERMS}:position", weight=2.0),
        "alive": RewardConfig(func=f"{TERMS}:alive", weight=0.5),
        "effort": RewardConfig(func=f"{TERMS}:effort", weight=-0.1),
    },
    terminations={"far": TerminationConfig(func=f"{TERMS}:far", params={"limit": LIMIT})},
    events={
        "cart": event("draw_joint_position", joint="slider", low=-0.1, high=-0.05),
        "pole": event("draw_joint_position", joint="hinge", low=0.1, high=0.3),
        "velocities": event("draw_velocities", std=0.5),
    },
)


def make(config: EnvConfig = CONFIG, num_envs: int = NUM_ENVS, seed: int = 0, **changes: Any) -> Env:
    torch.manual_seed(seed)
    return Env(dataclasses.replace(config, **changes), num_envs, "cpu")


def c_step(env: Env, actions: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Compute the next state of every env with MuJoCo's C code in float64."""
    qpos, qvel = np.empty(env.sim.qpos.shape), np.empty(env.sim.qvel.shape)
    for i in range(env.num_envs):
        data = mujoco.MjData(env.sim.model)
        data.qpos, data.qvel, data.ctrl = env.sim.qpos[i], env.sim.qvel[i], actions[i]
        mujoco.mj_step(env.sim.model, data)
        qpos[i], qvel[i] = data.qpos, data.qvel
    return qpos, qvel


@dataclass
class Step:
    """Results of one step of the env.

    The env returns the first four. The test computes `qpos` and `terms` with MuJoCo's C code, so no reset changes them.
    """

    obs: Any
    rewards: torch.Tensor
    dones: np.ndarray
    time_outs: np.ndarray
    qpos: np.ndarray
    terms: np.ndarray


def play(env: Env, num_steps: int, seed: int = 1) -> list[Step]:
    generator = torch.Generator().manual_seed(seed)
    steps = []
    for _ in range(num_steps):
        actions = torch.randn(env.num_envs, 1, generator=generator)
        qpos, _ = c_step(env, actions)
        obs, rewards, dones, extras = env.step(actions)
        terms = np.stack([qpos[:, 0], np.ones(env.num_envs), actions.numpy().astype(float)[:, 0] ** 2])
        steps.append(Step(obs, rewards, dones.numpy(), extras["time_outs"].numpy(), qpos, terms))
    return steps


@dataclass
class Episode:
    env: int
    length: int
    terms: np.ndarray
    timed_out: bool


def episodes_of(steps: list[Step], ages: np.ndarray) -> list[Episode]:
    """Split steps into episodes by the test's own rules: an episode ends at the position limit or the time limit."""
    sums, lengths, ages = np.zeros((3, len(ages))), np.zeros(len(ages), dtype=int), ages.copy()
    ended = []
    for step in steps:
        ages += 1
        lengths += 1
        sums += step.terms
        terminated = np.abs(step.qpos[:, 0]) > LIMIT
        for i in np.flatnonzero(terminated | (ages >= MAX_STEPS)):
            ended.append(Episode(int(i), int(lengths[i]), sums[:, i].copy(), not terminated[i]))
            sums[:, i], lengths[i], ages[i] = 0, 0, 0
    return ended


def assert_totals(totals: EpisodeTotals, episodes: list[Episode]) -> None:
    assert totals.episodes == len(episodes)
    assert totals.steps == sum(e.length for e in episodes)
    terms = WEIGHTS * sum((e.terms for e in episodes), np.zeros(3))
    np.testing.assert_allclose(totals.terms, terms, rtol=1e-5, atol=1e-4)


# Shapes


def test_shapes_and_dtypes() -> None:
    env = make()
    assert (env.num_envs, env.num_actions, env.max_episode_length) == (NUM_ENVS, 1, MAX_STEPS)
    assert env.step_dt_s == pytest.approx(0.01)
    assert env.reward_names == ("position", "alive", "effort")
    assert env.episode_length_buf.dtype == torch.long
    for obs in (env.get_observations(), env.reset(), env.step(torch.zeros(NUM_ENVS, 1))[0]):
        assert set(obs.keys()) == {"actor", "critic"}
        assert obs.batch_size == (NUM_ENVS,)
        assert (obs["actor"].shape, obs["critic"].shape) == ((NUM_ENVS, 2), (NUM_ENVS, 4))
        assert obs["actor"].dtype == obs["critic"].dtype == torch.float32
    _, rewards, dones, extras = env.step(torch.zeros(NUM_ENVS, 1))
    assert (rewards.shape, rewards.dtype) == ((NUM_ENVS,), torch.float32)
    assert (dones.shape, dones.dtype) == ((NUM_ENVS,), torch.bool)
    assert (extras["time_outs"].shape, extras["time_outs"].dtype) == ((NUM_ENVS,), torch.bool)


def test_substeps_make_control_steps_longer_and_episodes_fewer_steps() -> None:
    env = make(sim=dataclasses.replace(CARTPOLE, decimation=4))
    assert env.step_dt_s == pytest.approx(0.04)
    assert env.max_episode_length == 10


# Episodes


@pytest.mark.parametrize("forward", [True, False])
def test_every_step_matches_mujoco_c_and_every_kind_of_episode_end_is_distinguished(forward: bool) -> None:
    env = make(sim=dataclasses.replace(CARTPOLE, forward_before_observation=forward))
    ages, kinds = np.zeros(NUM_ENVS, dtype=int), set()
    for step in play(env, 3 * MAX_STEPS):
        ages += 1
        terminated = np.abs(step.qpos[:, 0]) > LIMIT
        timed_out = (ages >= MAX_STEPS) & ~terminated
        np.testing.assert_allclose(step.rewards, WEIGHTS @ step.terms, rtol=1e-5, atol=1e-6)
        assert np.array_equal(step.dones, terminated | timed_out)
        assert np.array_equal(step.time_outs, timed_out)
        ages[step.dones] = 0
        kinds |= {"terminated"} if terminated.any() else set()
        kinds |= {"timed out"} if timed_out.any() else set()
    assert kinds == {"terminated", "timed out"}
    assert np.array_equal(env.episode_length_buf, ages)


def test_a_finished_env_restarts_at_once_and_the_others_continue() -> None:
    env = make()
    actions = torch.full((NUM_ENVS, 1), 0.7)
    env.step(actions)
    finished = torch.arange(NUM_ENVS) % 2 == 0
    env.episode_length_buf[:] = torch.where(finished, MAX_STEPS - 1, 7)
    qpos, qvel = c_step(env, actions)
    obs, _, dones, _ = env.step(actions)
    assert torch.equal(dones, finished)
    going = ~finished.numpy()
    np.testing.assert_allclose(env.sim.qpos[~finished], qpos[going], rtol=0, atol=1e-6)
    np.testing.assert_allclose(env.sim.qvel[~finished], qvel[going], rtol=0, atol=1e-5)
    assert torch.equal(env.actions, torch.where(finished.unsqueeze(1), 0.0, actions))
    assert env.episode_length_buf.tolist() == [0, 8] * (NUM_ENVS // 2)
    cart, pole = env.sim.qpos[finished].T
    assert ((cart >= -0.1) & (cart <= -0.05)).all()
    assert ((pole >= 0.1) & (pole <= 0.3)).all()
    assert len(set(cart.tolist())) == len(set(pole.tolist())) == NUM_ENVS // 2  # each env samples its own state
    assert (env.sim.qvel[finished] != 0).all()
    assert torch.allclose(env.sim.view("time"), torch.where(finished, 0.0, 0.02))
    assert torch.equal(obs["actor"], torch.stack([env.sim.qpos[:, 0], env.sim.qvel[:, 1]], dim=1))


def test_a_diverged_env_is_reset_and_affects_no_other_env() -> None:
    env = make()
    env.sim.qpos[3] = float("nan")
    env.episode_length_buf[3] = MAX_STEPS - 1
    obs, rewards, dones, _ = env.step(torch.zeros(NUM_ENVS, 1))
    assert dones.tolist() == [i == 3 for i in range(NUM_ENVS)]
    assert rewards.isnan().tolist() == [i == 3 for i in range(NUM_ENVS)]
    assert all(group.isfinite().all() for group in obs.values())
    for step in play(env, 5):
        assert step.rewards.isfinite().all()


# Observations


def test_forward_updates_observed_poses_to_the_current_state() -> None:
    env = make(sim=dataclasses.replace(CARTPOLE, forward_before_observation=True))
    assert env.sim.model.geom(5).name == "pole"
    restarted = 0
    for step in play(env, 50):
        restarted += int(step.dones.sum())
        for i in range(NUM_ENVS):
            data = mujoco.MjData(env.sim.model)
            data.qpos = [step.obs["actor"][i, 0], step.obs["critic"][i, 0]]
            mujoco.mj_kinematics(env.sim.model, data)
            np.testing.assert_allclose(step.obs["critic"][i, 1:], data.geom_xpos[5], rtol=0, atol=1e-6)
    assert restarted > 0


def test_observations_are_copies_of_the_state() -> None:
    env = make(observations={"actor": {"cart": CONFIG.observations["actor"]["cart"]}})
    obs = env.get_observations()["actor"]
    before = obs.clone()
    env.step(torch.ones(NUM_ENVS, 1))
    assert torch.equal(obs, before)
    assert not torch.equal(env.get_observations()["actor"], before)


# Totals


def test_each_episode_counts_in_the_interval_in_which_it_ends() -> None:
    env = make()
    parts, totals = [], []
    for part in range(5):
        parts.append(play(env, 31, seed=part))
        totals.append(env.pop_episode_totals())
    until: list[Episode] = []
    for i, total in enumerate(totals):
        before = until
        until = episodes_of([s for part in parts[: i + 1] for s in part], np.zeros(NUM_ENVS, dtype=int))
        assert_totals(total, until[len(before) :])
    assert {episode.timed_out for episode in until} == {True, False}


def test_first_staggered_episodes_are_excluded_from_the_totals() -> None:
    env = make()
    env.stagger()
    ages = env.episode_length_buf.numpy().copy()
    assert ages.min() >= 0
    assert ages.max() < MAX_STEPS
    assert len(set(ages)) > NUM_ENVS // 2
    steps = play(env, 3 * MAX_STEPS)
    episodes = episodes_of(steps, ages)
    firsts = [next(e for e in episodes if e.env == i) for i in range(NUM_ENVS)]
    later = [e for e in episodes if not any(e is first for first in firsts)]
    assert any(first.timed_out and first.length < MAX_STEPS for first in firsts)  # staggering shortens first episodes
    assert len(later) >= NUM_ENVS
    assert_totals(env.pop_episode_totals(), later)


def test_a_reset_ends_staggering() -> None:
    env = make()
    env.stagger()
    env.reset()
    steps = play(env, MAX_STEPS)
    assert_totals(env.pop_episode_totals(), episodes_of(steps, np.zeros(NUM_ENVS, dtype=int)))


@pytest.mark.usefixtures("engine_of_gpus")
def test_an_overflow_is_still_reported_after_the_episode_ends() -> None:
    """`env.sim.overflow` is read only once per iteration, so a reset must not clear an env's overflow."""
    config = dataclasses.replace(CONFIG, sim=dataclasses.replace(BOX, njmax=4), **box_terms())
    env = make(config, num_envs=4, episode_length_s=0.3)
    assert env.max_episode_length == 60
    for _ in range(59):
        env.step(torch.zeros(4, 1))
    assert (env.sim.overflow != 0).all()  # the box has landed
    env.step(torch.zeros(4, 1))
    assert not env.episode_length_buf.any()
    env.step(torch.zeros(4, 1))  # the box is in the air again
    assert (env.sim.overflow != 0).all()


# State


def dragged_config() -> EnvConfig:
    actions = {"all": ActionConfig(actuators=("push", "spin"), scale=3.0)}
    changes = {**box_terms(), "actions": actions, "terminations": CONFIG.terminations}
    return dataclasses.replace(CONFIG, sim=DRAGGED, **changes)


def everything(forward: bool = False, **changes: Any) -> EnvConfig:
    """Return a config with every kind of term, including a curriculum."""
    sim = dataclasses.replace(EVERYTHING.sim, forward_before_observation=forward)
    curricula = {"ended": TermConfig(func=f"{TERMS}:Ended")}
    return dataclasses.replace(EVERYTHING, sim=sim, curricula=curricula, **changes)


def advance(env: Env, actions: torch.Tensor) -> list[torch.Tensor]:
    """Step an env with each row of `actions`.

    Return all outputs: states, observations, rewards, ends of episodes and totals.
    """
    seen = []
    for row in actions:
        obs, rewards, dones, extras = env.step(row)
        seen += [env.sim.qpos.clone(), env.sim.qvel.clone(), *obs.values(), rewards, dones, extras["time_outs"]]
        if "mocap_pos" in env.sim.physics:
            env.sim.physics["mocap_pos"] += 0.01 * torch.randn(env.num_envs, 1, 3)
    return [*seen, *env.pop_episode_totals()]


@pytest.mark.parametrize("name", ["cartpole", "resetting", "dragged", "everything"])
def test_20_steps_equal_10_in_one_env_and_10_in_another(name: str) -> None:
    config = {"dragged": dragged_config(), "everything": everything()}.get(name, CONFIG)
    changes = {"episode_length_s": 0.07, "nan_policy": "reset" if name == "resetting" else "stop"}
    env = make(config, **changes)
    env.stagger()
    actions = torch.randn(20, NUM_ENVS, env.num_actions, generator=torch.Generator().manual_seed(1))
    advance(env, actions[:10])
    state, random_state = env.state(), torch.get_rng_state()
    kept = {name: tensor.clone() for name, tensor in state.items()}
    whole = advance(env, actions[10:])
    assert all(torch.equal(state[name], kept[name]) for name in state)  # the state is a copy
    assert any(seen.dtype == torch.bool and seen.any() for seen in whole)  # episodes end and start

    other = make(config, **changes, seed=5)
    advance(other, actions[:3])
    addresses = {name: tensor.data_ptr() for name, tensor in other.sim.state().items()}
    other.load_state(state)
    torch.set_rng_state(random_state)
    part = advance(other, actions[10:])
    assert all(torch.equal(a, b) for a, b in zip(part, whole, strict=True))
    assert not env.sim.overflow.any()
    assert {name: tensor.data_ptr() for name, tensor in other.sim.state().items()} == addresses


def test_the_state_has_a_row_per_env_and_loads_only_into_the_same_task_and_number_of_envs() -> None:
    env = make()
    state = env.state()
    of_all_envs = {"totals", "outcome_totals", "nan_resets"}
    assert {name for name, tensor in state.items() if tensor.shape[:1] != (NUM_ENVS,)} == of_all_envs
    before = env.state()
    others = make(everything()).state()
    assert {name for name, tensor in others.items() if tensor.shape[:1] != (NUM_ENVS,)} == of_all_envs
    for other in (make(num_envs=NUM_ENVS + 1), make(dragged_config()), make(everything())):
        with pytest.raises(UserError, match=r"\(\d+(, \d+)*,?\)"):
            env.load_state(other.state())
    assert all(torch.equal(before[name], tensor) for name, tensor in env.state().items())


def test_weights_per_second_are_multiplied_by_the_length_of_a_control_step() -> None:
    per_step, per_second = make(), make(reward_scale="dt")
    actions = torch.ones(NUM_ENVS, 1)
    for env in (per_step, per_second):
        env.load_state(per_step.state())
    _, rewards, _, _ = per_step.step(actions)
    _, scaled, _, _ = per_second.step(actions)
    assert rewards.any()
    torch.testing.assert_close(scaled, rewards * per_step.step_dt_s)


def test_a_changed_reward_weight_applies_to_a_resumed_run() -> None:
    env = make()
    state = env.state()
    heavier = {name: dataclasses.replace(term, weight=3 * term.weight) for name, term in CONFIG.rewards.items()}
    other = make(rewards=heavier)
    other.load_state(state)
    actions = torch.ones(NUM_ENVS, 1)
    np.testing.assert_allclose(other.step(actions)[1], 3 * env.step(actions)[1], rtol=1e-5, atol=1e-6)


# Numbers that are not finite


def poisoned_and_healthy(
    config: EnvConfig, poison: Callable[[Env], None]
) -> tuple[list[torch.Tensor], list[torch.Tensor], Env]:
    """Step two batches of envs with the same random numbers. Call `poison` with the first batch before its 11th step.

    Return the outputs of the first batch, the outputs of the second batch, and the first batch.
    """

    def show(env: Env, row: torch.Tensor) -> torch.Tensor:
        obs, rewards, dones, extras = env.step(row)
        ends = torch.stack([rewards, dones, extras["time_outs"]], dim=1)
        return torch.cat([*(obs[group] for group in config.observations), env.sim.qpos, env.sim.qvel, ends], dim=1)

    def run(env: Env, poison: Callable[[Env], None]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        env.stagger()
        actions = torch.randn(30, NUM_ENVS, env.num_actions)
        seen = [show(env, row) for row in actions[:10]]
        poison(env)
        return seen + [show(env, row) for row in actions[10:]]

    env = make(config)
    return run(env, poison), run(make(config), lambda _: None), env


BAD = torch.arange(NUM_ENVS) % 3 == 1


def spoil(name: str, value: float, column: int = 0) -> Callable[[Env], None]:
    def poison(env: Env) -> None:
        env.sim.view(name).view(NUM_ENVS, -1)[BAD, column] = value

    return poison


def spoil_command(env: Env) -> None:
    env.command("velocity")[BAD, 2] = float("nan")


POISONS: dict[str, tuple[str, Callable[[Env], None]]] = {
    "velocity": ("cartpole", spoil("qvel", float("nan"))),
    "infinity": ("cartpole", spoil("qpos", float("inf"), column=1)),
    "warm start": ("dragged", spoil("qacc_warmstart", float("nan"))),
    "activation": ("dragged", spoil("act", float("nan"))),
    "carried velocity": ("dragged by warp", spoil("cvel", float("nan"), column=13)),
    "mocap": ("dragged", spoil("mocap_pos", float("nan"))),
    "everything's velocity": ("everything", spoil("qvel", float("nan"), column=4)),
    "everything's hip": ("everything", spoil("qpos", float("nan"), column=8)),
    "everything's command": ("everything", spoil_command),
}


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("poisoned", POISONS)
def test_envs_with_nan_are_reset_and_counted_and_other_envs_are_unaffected(poisoned: str, forward: bool) -> None:
    model, poison = POISONS[poisoned]
    config = {"cartpole": CONFIG, "everything": EVERYTHING}.get(model) or dragged_config()
    # Only MuJoCo Warp carries velocities of bodies from step to step
    engine = "warp" if model == "dragged by warp" else "auto"
    sim = dataclasses.replace(config.sim, forward_before_observation=forward, engine=engine)
    config = dataclasses.replace(config, sim=sim, nan_policy="reset")
    # Without forward, an env that is reset observes poses from before the reset, which can be NaN. Observe no poses.
    if not forward and model != "everything":
        config = dataclasses.replace(config, observations={"actor": config.observations["actor"]})
    ours, oracle, env = poisoned_and_healthy(config, poison)
    assert all(a.isfinite().all() for a in ours)
    assert all(torch.equal(a[~BAD], b[~BAD]) for a, b in zip(ours, oracle, strict=True))
    rewards, dones, time_outs = next(a for a, b in zip(ours, oracle, strict=True) if not torch.equal(a, b))[BAD, -3:].T
    assert dones.all()
    assert not time_outs.any()
    assert not rewards.any()
    assert env.pop_nan_resets() == BAD.sum()
    assert env.pop_nan_resets() == 0
    assert all(tensor.isfinite().all() for tensor in env.state().values() if tensor.is_floating_point())


def test_episodes_ended_by_nan_are_excluded_from_the_totals() -> None:
    config = dataclasses.replace(CONFIG, terminations={}, nan_policy="reset")
    env = make(config)
    rewards = torch.zeros(NUM_ENVS)
    for i in range(MAX_STEPS):
        if i == 20:
            env.sim.qvel[3] = float("nan")
        rewards += env.step(torch.ones(NUM_ENVS, 1))[1]
    totals = env.pop_episode_totals()
    others = torch.arange(NUM_ENVS) != 3
    assert totals.episodes == NUM_ENVS - 1
    assert totals.steps == (NUM_ENVS - 1) * MAX_STEPS
    assert float(totals.terms.sum()) == pytest.approx(float(rewards[others].sum()), rel=1e-5)
    for _ in range(21):  # the episode that began at the reset in step 20 ends and counts
        env.step(torch.ones(NUM_ENVS, 1))
    totals = env.pop_episode_totals()
    assert (totals.episodes, totals.steps) == (1, MAX_STEPS)


ROOT = {"actor": {"root": ObservationConfig(func=f"{TERMS}:root")}}
AHEAD = {"cart": event("draw_joint_position", joint="slider", low=0.01, high=0.05)}
"""Start states in which the square root of the cart's position is finite."""


def test_a_reward_that_is_not_finite_resets_the_env_although_the_state_is_finite() -> None:
    reward = RewardConfig(func=f"{TERMS}:inverse", weight=1.0, params={"limit": 0.1})
    env = make(nan_policy="reset", terminations={}, events=AHEAD, rewards={"inverse": reward})
    env.sim.qpos[2, 0] = 0.2
    _, rewards, dones, _ = env.step(torch.zeros(NUM_ENVS, 1))
    assert dones.tolist() == [i == 2 for i in range(NUM_ENVS)]
    assert rewards[2] == 0
    assert rewards.isfinite().all()
    assert env.pop_nan_resets() == 1


def test_an_observation_that_is_not_finite_is_replaced_by_0_and_ends_the_episode_in_the_next_step() -> None:
    observations = {**ROOT, "critic": CONFIG.observations["critic"]}
    env = make(nan_policy="reset", terminations={}, events=AHEAD, observations=observations)
    env.sim.qpos[2, 0] = -0.2
    env.sim.qpos[5, 0] = float("inf")  # the step resets this env, because its physics state is not finite
    third = torch.arange(NUM_ENVS) == 2
    obs, rewards, dones, _ = env.step(torch.zeros(NUM_ENVS, 1))
    assert dones.tolist() == [i == 5 for i in range(NUM_ENVS)]
    assert obs["actor"][2] == 0
    assert torch.equal(obs["actor"][~third], env.sim.qpos[~third, :1].sqrt())
    assert obs["critic"].isfinite().all()
    assert rewards[2] != 0
    assert env.pop_nan_resets() == 1
    obs, rewards, dones, extras = env.step(torch.zeros(NUM_ENVS, 1))
    assert dones.tolist() == third.tolist()
    assert rewards[2] == 0
    assert not extras["time_outs"].any()
    assert torch.equal(obs["actor"], env.sim.qpos[:, :1].sqrt())
    assert env.pop_nan_resets() == 1
    assert env.pop_episode_totals().episodes == 0
    assert not env.step(torch.zeros(NUM_ENVS, 1))[2].any()


def test_observations_that_are_not_finite_in_all_start_states_are_counted_in_every_step() -> None:
    env = make(nan_policy="reset", observations=ROOT)
    assert (env.sim.qpos[:, 0] < 0).all()
    assert not env.get_observations()["actor"].any()
    for _ in range(3):
        obs, rewards, dones, _ = env.step(torch.zeros(NUM_ENVS, 1))
        assert not obs["actor"].any()
        assert dones.all()
        assert not rewards.any()
    assert env.pop_nan_resets() == 3 * NUM_ENVS


def test_after_a_resume_an_earlier_observation_that_is_not_finite_ends_its_episode() -> None:
    changes: dict[str, Any] = {"nan_policy": "reset", "terminations": {}, "events": AHEAD, "observations": ROOT}
    env, other = make(**changes), make(**changes, seed=3)
    env.sim.qpos[2, 0] = -0.2
    env.step(torch.zeros(NUM_ENVS, 1))
    other.load_state(env.state())
    assert other.step(torch.zeros(NUM_ENVS, 1))[2].tolist() == [i == 2 for i in range(NUM_ENVS)]


@pytest.mark.parametrize("nan_policy", ["stop", "reset"])
def test_observation_terms_are_evaluated_once_per_step(nan_policy: str) -> None:
    counts = {"actor": {"calls": ObservationConfig(func=f"{TERMS}:Calls")}}
    env = make(nan_policy=nan_policy, observations=counts)
    first = env.get_observations()["actor"][0, 0].item()
    seen = [env.step(torch.zeros(NUM_ENVS, 1))[0]["actor"][0, 0].item() for _ in range(4)]
    assert seen == [first + 1, first + 2, first + 3, first + 4]


def test_both_nan_policies_are_equal_without_nan() -> None:
    config = dataclasses.replace(CONFIG, sim=dataclasses.replace(CARTPOLE, forward_before_observation=False))
    (ours, _, stop), (oracle, _, reset) = (
        poisoned_and_healthy(dataclasses.replace(config, nan_policy=policy), lambda _: None)
        for policy in ("stop", "reset")
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, oracle, strict=True))
    assert stop.pop_nan_resets() == reset.pop_nan_resets() == 0


def test_a_term_that_is_not_finite_makes_its_total_not_finite() -> None:
    env = make()
    env.sim.qpos[3] = float("nan")
    env.step(torch.zeros(NUM_ENVS, 1))
    env.sim.qpos[3] = 0.0
    for _ in range(3):
        env.step(torch.zeros(NUM_ENVS, 1))
    assert env.pop_episode_totals().terms.isfinite().tolist() == [False, True, True]


# Actions


def box_terms() -> dict[str, Any]:
    """Return the config fields that replace the cartpole's terms in the box's config."""
    return {
        "actions": {"force": ActionConfig(actuators=("lift",))},
        "observations": {
            "actor": {"pose": observe("joint_position", {"joint": "root"})},
            "critic": {"velocity": observe("joint_velocity", {"joint": "root"})},
        },
        "terminations": {},
        "events": {},
    }


def test_all_coordinates_of_a_free_joint_are_observed() -> None:
    env = make(dataclasses.replace(CONFIG, sim=BOX, **box_terms()), num_envs=3)
    obs = env.step(torch.tensor([[30.0], [0.0], [-30.0]]))[0]
    assert (env.joints["root"].qpos, env.joints["root"].qvel) == (slice(0, 7), slice(0, 6))
    assert torch.equal(obs["actor"], env.sim.qpos)
    assert torch.equal(obs["critic"], env.sim.qvel)


# Wrong configs are refused


refused = functools.partial(legged.refused, CONFIG)


@pytest.mark.parametrize("func", ["no.such.module:f", f"{TERMS}:nothing", f"{TERMS}:not_callable", TERMS, ":position"])
def test_an_unknown_function_is_refused(func: str) -> None:
    message = refused(rewards={"odd": RewardConfig(func=func, weight=1.0)})
    assert message.startswith(f"--env.rewards.odd.func {func}: ")


def test_misspelled_arguments_of_a_term_are_refused() -> None:
    message = refused(observations={"actor": {"odd": observe("joint_position", {"joints": "hinge"})}})
    assert message.startswith("--env.observations.actor.odd.func mjlab_dist.mdp.observations:joint_position: ")
    assert "joints" in message


@pytest.mark.parametrize(
    ("func", "params", "message"),
    [
        ("Push", {"linear_m_s": 0.3}, "linear-m-s 0.3: takes 2 numbers"),
        ("Push", {"joint": ("root",)}, "joint root: takes a text"),
        ("DrawJoints", {"joints": 3}, "joints 3: takes texts"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(func: str, params: dict[str, Any], message: str) -> None:
    assert refused(events={"odd": event(func, **params)}) == f"--env.events.odd.params.{message}"


@pytest.mark.parametrize("joints", ["hin.*", ["hin.*"], ("hin.*",)])
def test_a_single_text_is_one_pattern(joints: Any) -> None:
    env = make(observations={"actor": {"hinge": observe("JointPositions", {"joints": joints})}})
    assert find_names("joints", joints, ["slider", "hinge"]) == [1]
    torch.testing.assert_close(env.get_observations()["actor"], env.sim.qpos[:, 1:2])


def test_an_episode_shorter_than_a_step_is_refused() -> None:
    assert refused(episode_length_s=0.0049).startswith("--env.episode-length-s 0.0049: ")


# The host never waits for the device


@pytest.mark.parametrize(
    "sync",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x.sum()),
        lambda x: x.nonzero(),
        lambda x: torch.where(x > 0),
        lambda x: x[x > 0],
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.masked_select(x > 0),
        lambda x: x.masked_fill(x > 0, x[0]),
        lambda x: x.masked_fill_(x > 0, x[0]),
        lambda x: x.__setitem__(x > 0, torch.zeros(3)),
        lambda x: x.__setitem__(torch.tensor([0, 1]), 5.0),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x + 1),
        lambda x: x.to("meta"),
        lambda x: torch.empty(3, device="meta").copy_(x),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_the_counter_counts(sync: Callable[[torch.Tensor], object], inference: bool) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    with torch.inference_mode(inference), HostSyncs() as syncs:
        x.mul_(2)
        assert syncs.found == []
        sync(x)
    assert syncs.found


@pytest.mark.parametrize("read", [lambda x: x.cpu(), lambda x: x.numpy(), lambda x: x.tolist()])
def test_reads_are_counted(read: Callable[[torch.Tensor], object]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    with HostReads() as reads:
        x.mul_(2)
        assert reads.found == []
        read(x)
    assert reads.found


@pytest.mark.parametrize("nan_policy", ["stop", "reset"])
@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("capture", ["physics", "off"])
@pytest.mark.usefixtures("engine_of_gpus")
def test_a_step_with_every_feature_never_waits_for_the_device(
    forward: bool, capture: CaptureMode, nan_policy: Any
) -> None:
    config = everything(forward, nan_policy=nan_policy)
    env = make(config, sim=dataclasses.replace(config.sim, capture=capture))
    env.stagger()  # so that some episodes end in these steps
    actions = torch.randn(40, NUM_ENVS, env.num_actions)
    with HostSyncs() as syncs, HostReads() as reads:
        dones = [env.step(row)[2] for row in actions]
        env.curriculum_metrics()
        env.pop_episode_totals()
        env.pop_nan_resets()
    assert torch.stack(dones).any(dim=0).all()
    assert syncs.num_ops > 40 * 200
    assert reads.num_calls > 40 * 200
    assert syncs.found == reads.found == []


# Seeds


def trajectory(seed: int) -> list[torch.Tensor]:
    env = make(seed=seed)
    env.stagger()
    steps = play(env, 2 * MAX_STEPS)
    return [torch.cat([step.obs["actor"], step.obs["critic"], step.rewards.unsqueeze(1)], dim=1) for step in steps]


def test_the_seed_determines_the_trajectory() -> None:
    first, again, other = trajectory(3), trajectory(3), trajectory(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


# Curricula


def test_curricula_receive_episodes_when_they_end_and_totals_when_iterations_end() -> None:
    env = make(curricula={"ended": TermConfig(func=f"{TERMS}:Ended", params={"factor": 0.5})})
    curriculum = env._curricula["ended"]
    assert isinstance(curriculum, Ended)
    ages, kinds = np.zeros(NUM_ENVS, dtype=int), set()
    for count in range(1, 2 * MAX_STEPS + 1):
        (step,) = play(env, 1, seed=count)
        ages += 1
        assert curriculum.calls == count
        for i in np.flatnonzero(step.dones):
            np.testing.assert_allclose(curriculum.qpos[i], step.qpos[i], rtol=0, atol=1e-6)
            assert curriculum.length[i] == ages[i]
            far = abs(step.qpos[i, 0]) > LIMIT
            assert (curriculum.terminated[i], curriculum.timed_out[i]) == (far, ages[i] == MAX_STEPS)
            kinds.add(bool(far))
        ages[step.dones] = 0
    assert kinds == {True, False}
    metrics = env.curriculum_metrics()
    assert metrics.keys() == {"ended/length"}
    assert float(metrics["ended/length"]) == pytest.approx(float(curriculum.length.float().mean()))
    totals = env.pop_episode_totals()
    env.end_iteration(totals)
    assert curriculum.totals == [totals]
    np.testing.assert_allclose(env.weights, 0.5 * WEIGHTS)
    (step,) = play(env, 1)
    np.testing.assert_allclose(step.rewards, 0.5 * WEIGHTS @ step.terms, rtol=1e-5, atol=1e-6)


# Indices of the envs of all ranks


def test_envs_of_all_ranks_are_distributed_over_the_tiles_of_a_terrain() -> None:
    parts = {"flat": TerrainPartConfig(kind="flat"), "up": TerrainPartConfig(kind="slope_up")}
    grid = TerrainConfig(parts=parts, num_levels=3, num_columns=4, tile_size_m=2.0, platform_m=0.5, resolution_m=0.25)
    terrain = Terrain(grid)
    ids = torch.arange(24)
    whole = start_positions(terrain, ids)
    assert torch.equal(torch.cat([start_positions(terrain, ids[:9]), start_positions(terrain, ids[9:])]), whole)
    tiles = {tuple(row) for row in whole.tolist()}
    assert tiles == {tuple(row) for row in terrain.origins.reshape(-1, 3).tolist()}
    assert torch.equal(whole[:12], whole[12:])  # there are 12 tiles, so env 12 starts on the tile of env 0
    assert torch.equal(whole[:4], torch.from_numpy(terrain.origins[0]))  # the first four envs are on the first level
    assert not start_positions(None, ids).any()


def test_terms_read_the_index_of_each_env_in_the_whole_run():
    config = dataclasses.replace(CONFIG, observations={"actor": {"id": ObservationConfig(func=f"{TERMS}:own_id")}})
    ranks = [Env(config, NUM_ENVS, "cpu", first_env_id=rank * NUM_ENVS) for rank in range(3)]
    seen = [env.step(torch.zeros(NUM_ENVS, 1))[0]["actor"].squeeze(1).tolist() for env in ranks]
    assert [i for ids in seen for i in ids] == list(range(3 * NUM_ENVS))
    assert all(env.env_ids.dtype == torch.int64 for env in ranks)
    assert make().env_ids.tolist() == list(range(NUM_ENVS))
