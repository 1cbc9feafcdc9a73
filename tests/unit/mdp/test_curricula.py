"""Curricula: terrain levels follow the rules that a test implements, and ranges and weights follow measured values."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from legged import SIM, end_episodes, event, make, refused, reward, term

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.config import TermConfig, TerrainConfig, TerrainPartConfig, registry
from mjlab_dist.distributed import Rank
from mjlab_dist.env import Env, EpisodeTotals
from mjlab_dist.learn.runner import Runner
from mjlab_dist.mdp.curricula import TerrainLevels
from mjlab_dist.runs.run_dir import read_metrics

NUM_LEVELS, NUM_COLUMNS, TILE_M = 4, 3, 6.0
TERRAIN = TerrainConfig(
    parts={"down": TerrainPartConfig(kind="slope_down"), "rough": TerrainPartConfig(kind="rough", share=2.0)},
    num_levels=NUM_LEVELS,
    num_columns=NUM_COLUMNS,
    tile_size_m=TILE_M,
    border_m=1.0,
    resolution_m=0.1,
)
WALK = term(
    "commands:Velocity",
    forward_m_s=(0.5, 2.0),
    left_m_s=(-0.5, 0.5),
    yaw_rad_s=(-0.1, 0.1),
    standing_share=0.2,
    resample_s=(0.2, 0.4),
)
TASK: dict[str, Any] = {
    "sim": dataclasses.replace(SIM, terrain=TERRAIN, nconmax=24, njmax=96),
    "commands": {"velocity": WALK},
    "events": {"start": event("DrawRoot")},
    "rewards": {"alive": reward("alive", 2.0), "rate": reward("action_rate", -0.1)},
    "curricula": {"terrain": term("curricula:TerrainLevels")},
}
NUM_ENVS = 24
SHALLOW = dataclasses.replace(TASK["sim"], terrain=dataclasses.replace(TERRAIN, num_levels=NUM_LEVELS - 1))


def curricula(**terms: dict[str, Any]) -> dict[str, TermConfig]:
    """Return a dict of curricula. In the parameters of a curriculum, `of` is the name of its class."""
    return {
        name: term(f"curricula:{params['of']}", **{key: value for key, value in params.items() if key != "of"})
        for name, params in terms.items()
    }


def levels(env: Env) -> torch.Tensor:
    found = env._curricula["terrain"]
    assert isinstance(found, TerrainLevels)
    return found.level


def move(env: Env, walked_m: float | torch.Tensor) -> None:
    """Move robots to their origins, and then by `walked_m` along x."""
    env.sim.qpos[:, :2] = env.origins[:, :2]
    env.sim.qpos[:, 0] += walked_m


def tell(env: Env, forward_m_s: float) -> None:
    env.find_command("velocity").left_s.fill_(100.0)
    env.command("velocity").copy_(torch.tensor([forward_m_s, 0.0, 0.0]))


# Terrain levels


@pytest.mark.parametrize("num_start_levels", [1, 2])
def test_envs_start_on_the_easiest_levels_of_their_column(num_start_levels: int) -> None:
    terms = curricula(terrain={"of": "TerrainLevels", "num_start_levels": num_start_levels})
    ids = torch.arange(NUM_ENVS, 2 * NUM_ENVS)
    config = dataclasses.replace(make(1).cfg, **{**TASK, "curricula": terms})
    env = Env(config, NUM_ENVS, "cpu", first_env_id=NUM_ENVS)
    assert env.terrain is not None
    expected = torch.from_numpy(env.terrain.origins)[(ids // NUM_COLUMNS) % num_start_levels, ids % NUM_COLUMNS]
    assert torch.equal(env.origins, expected)
    assert torch.equal(env.sim.qpos[:, :3], expected + env.reference.qpos[:, :3])
    assert levels(env).bincount().tolist() == [NUM_ENVS // num_start_levels] * num_start_levels


@pytest.mark.parametrize(
    ("walked_m", "after"),
    [(0.44, 0), (0.46, 1), (TILE_M / 2 - 0.01, 1), (TILE_M / 2 + 0.01, 2)],
)
def test_robots_that_leave_the_tile_move_up_and_those_that_hardly_walk_move_down(walked_m: float, after: int) -> None:
    env = make(NUM_ENVS, **TASK)
    levels(env).fill_(1)
    ended = torch.arange(NUM_ENVS) % 2 == 0
    tell(env, 0.9)
    for _ in range(99):  # an episode has 100 steps of 0.01 s: the commanded distance is 0.9 m
        move(env, 0.0)
        env.step(torch.zeros(NUM_ENVS, 4))
        env.episode_length_buf.zero_()
    move(env, walked_m)
    env.episode_length_buf[ended] = 99
    env.step(torch.zeros(NUM_ENVS, 4))
    assert levels(env)[ended].tolist() == [after] * (NUM_ENVS // 2)
    assert levels(env)[~ended].tolist() == [1] * (NUM_ENVS // 2)
    assert env.terrain is not None
    tiles = torch.from_numpy(env.terrain.origins)
    assert torch.equal(env.origins[ended], tiles[after, env.env_ids[ended] % NUM_COLUMNS])
    assert torch.allclose(env.sim.qpos[ended, :3], env.origins[ended] + env.reference.qpos[ended, :3])


@pytest.mark.parametrize(("walked_m", "after"), [(0.21, 0), (0.25, 1)])
def test_the_expected_distance_after_an_early_fall_is_that_of_the_whole_episode(walked_m: float, after: int) -> None:
    env = make(NUM_ENVS, **TASK)
    levels(env).fill_(1)
    tell(env, 0.9)
    move(env, walked_m)
    # In 51 steps (1 past, 50 remaining), the commanded distance at 0.9 m/s is 0.46 m. Half of it is 0.23 m
    env.episode_length_buf.fill_(50)
    terms = env._curricula["terrain"]
    terms.episode_ends(env, torch.ones(NUM_ENVS, dtype=torch.bool))
    assert levels(env).tolist() == [after] * NUM_ENVS


def test_levels_follow_the_rules_over_many_episodes() -> None:
    env = make(NUM_ENVS, **TASK, seed=4)
    assert env.terrain is not None
    rng = np.random.default_rng(5)
    level = np.zeros(NUM_ENVS, dtype=int)
    told_m = np.zeros(NUM_ENVS)
    moves: dict[int | str, int] = {-1: 0, 0: 0, 1: 0, "drawn": 0}
    for _ in range(300):
        env.episode_length_buf[torch.from_numpy(rng.random(NUM_ENVS) < 0.03)] = 99
        env.sim.qpos[:, :2] = env.origins[:, :2] + torch.from_numpy(
            rng.normal(size=(NUM_ENVS, 2)) * rng.choice([0.1, 1, 4], size=(NUM_ENVS, 1))
        )
        env.sim.qvel.zero_()
        speed = np.linalg.norm(env.command("velocity")[:, :2].double().numpy(), axis=1)
        origin, age = env.origins.double().numpy().copy(), env.episode_length_buf.numpy().copy() + 1
        before = env.sim.qpos[:, :2].double().numpy().copy()
        _, _, dones, _ = env.step(torch.zeros(NUM_ENVS, 4))
        done = dones.numpy()
        told_m += 0.01 * speed
        walked = np.linalg.norm(before - origin[:, :2], axis=1)
        needed = 0.5 * (told_m + speed * 0.01 * (100 - age))
        for i in np.flatnonzero(done):
            if min(abs(walked[i] - needed[i]), abs(walked[i] - TILE_M / 2)) < 1e-2:
                level[i] = int(levels(env)[i])  # too close to a limit: the motion during the step decides
                continue
            change = 1 if walked[i] > TILE_M / 2 else -1 if walked[i] < needed[i] else 0
            moves[change] += 1
            level[i] = max(level[i] + change, 0)
            if level[i] == NUM_LEVELS:
                moves["drawn"] += 1
                level[i] = int(levels(env)[i])
                assert 0 <= level[i] < NUM_LEVELS
        told_m[done] = 0.0
        assert levels(env).tolist() == level.tolist()
        tiles = env.terrain.origins[level, np.arange(NUM_ENVS) % NUM_COLUMNS]
        assert np.array_equal(env.origins.numpy(), tiles)
    assert min(moves.values()) > 5


def test_a_random_level_follows_the_hardest_level() -> None:
    env = make(240, **TASK)
    levels(env).fill_(NUM_LEVELS - 1)
    move(env, TILE_M)
    end_episodes(env, torch.ones(240, dtype=torch.bool))
    env.step(torch.zeros(240, 4))
    assert (levels(env).bincount(minlength=NUM_LEVELS) > 240 / NUM_LEVELS / 2).all()
    assert env.curriculum_metrics()["terrain/level"] == levels(env).float().mean()


# Ranges and weights

SETTINGS = {
    "range": {
        "of": "CommandRange",
        "command": "velocity",
        "number": 0,
        "widest": (-1.0, 2.5),
        "step": 0.4,
        "reward": "alive",
        "threshold": 0.9,
    },
    "weight": {"of": "RewardWeight", "reward": "rate", "weight": -0.5, "low": 0.2, "high": 0.6},
}
GLOBAL = {**TASK, "sim": SIM, "curricula": curricula(**SETTINGS)}
ALL = {**TASK, "curricula": {**TASK["curricula"], **GLOBAL["curricula"]}}


def totals(episodes: float, steps: float, alive: float) -> EpisodeTotals:
    """Return totals of an iteration. `alive` is the value of the term `alive` in each step, without its weight."""
    unweighted = torch.tensor([alive * steps, 1.0])
    none = torch.zeros(0)
    return EpisodeTotals(torch.tensor(episodes), torch.tensor(steps), unweighted, unweighted, none, none)


def range_of(env: Env) -> list[float]:
    return env.find_command("velocity").ranges[0].tolist()


def test_a_range_widens_step_by_step_while_enough_is_earned() -> None:
    env = make(NUM_ENVS, **GLOBAL)
    seen = []
    for alive in (0.95, 0.85, 0.95, 0.95, 0.95, 0.95):
        env.end_iteration(totals(200.0, 2000.0, alive))
        seen.append(range_of(env))
    assert np.allclose(seen, [[0.1, 2.4], [0.1, 2.4], [-0.3, 2.5], [-0.7, 2.5], [-1.0, 2.5], [-1.0, 2.5]], atol=1e-6)
    assert env.find_command("velocity").ranges[1].tolist() == [-0.5, 0.5]
    metrics = env.curriculum_metrics()
    assert (metrics["range/low"], metrics["range/high"]) == (-1.0, 2.5)
    drawn = torch.cat([command_after_reset(env) for _ in range(50)])
    assert -1.0 <= drawn.min() < -0.8
    assert 2.3 < drawn.max() <= 2.5


def command_after_reset(env: Env) -> torch.Tensor:
    env.reset()
    return env.command("velocity")[:, 0].clone()


def test_few_episodes_change_nothing_until_there_are_enough() -> None:
    env = make(NUM_ENVS, **GLOBAL)
    for _ in range(6):
        env.end_iteration(totals(10.0, 100.0, 1.0))
        env.end_iteration(totals(0.0, 0.0, 0.0))
    assert range_of(env) == [0.5, 2.0]
    assert env.weights[1] == pytest.approx(-0.1)
    # After the seventh iteration with episodes, measured values have more than half of the weight: 1 - 0.9^7 > 0.5.
    env.end_iteration(totals(10.0, 100.0, 1.0))
    assert range_of(env) == pytest.approx([0.1, 2.4])


def test_the_measure_averages_over_about_a_hundred_episodes() -> None:
    env = make(NUM_ENVS, **GLOBAL)
    env.end_iteration(totals(100.0, 1000.0, 1.0))
    assert range_of(env) == pytest.approx([0.1, 2.4])
    env.end_iteration(totals(50.0, 500.0, 0.79))  # now the mean is 0.895
    assert range_of(env) == pytest.approx([0.1, 2.4])
    env.end_iteration(totals(50.0, 500.0, 0.91))  # now the mean is 0.9025
    assert range_of(env) == pytest.approx([-0.3, 2.5])


def test_a_weight_follows_the_episode_length_and_never_returns() -> None:
    env = make(NUM_ENVS, **GLOBAL)
    seen = []
    for mean_length in (10, 30, 20, 50, 60, 5):
        env.end_iteration(totals(100.0, 100.0 * mean_length, 0.5))
        seen.append(float(env.weights[1]))
    assert seen == pytest.approx([-0.1, -0.2, -0.2, -0.4, -0.5, -0.5])
    assert env.weights[0] == 2.0
    assert env.curriculum_metrics()["weight/weight"] == pytest.approx(-0.5)
    env.reset()
    _, rewards, _, _ = env.step(torch.full((NUM_ENVS, 4), 3.0))
    assert torch.allclose(rewards, torch.full((NUM_ENVS,), 2.0 - 0.5 * 4 * 9.0))


def test_a_weight_can_follow_a_reward_term() -> None:
    settings = {**SETTINGS["weight"], "measure": "alive"}
    env = make(NUM_ENVS, **{**GLOBAL, "curricula": curricula(weight=settings)})
    env.end_iteration(totals(100.0, 7.0, 0.4))
    assert env.weights[1] == pytest.approx(-0.3)


def test_a_weight_of_zero_can_follow_its_own_term() -> None:
    settings = {**SETTINGS["weight"], "measure": "rate", "low": 0.0, "high": 0.1}
    rewards = {**GLOBAL["rewards"], "rate": reward("action_rate", 0.0)}
    env = make(NUM_ENVS, **{**GLOBAL, "rewards": rewards, "curricula": curricula(weight=settings)})
    env.end_iteration(totals(100.0, 20.0, 0.5))  # the term `rate` earned a total of 1 in 20 steps
    assert env.weights[1] == pytest.approx(-0.25)


def test_the_final_weight_is_in_the_unit_of_the_config() -> None:
    env = make(NUM_ENVS, **{**GLOBAL, "reward_scale": "dt"})
    env.end_iteration(totals(100.0, 6000.0, 0.5))
    assert env.weights[1] == pytest.approx(-0.5 * env.step_dt_s)
    assert env.curriculum_metrics()["weight/weight"] == pytest.approx(-0.5)


def test_real_episodes_are_measured() -> None:
    env = make(NUM_ENVS, **GLOBAL)
    for _ in range(250):
        env.step(torch.zeros(NUM_ENVS, 4))
    ended = env.pop_episode_totals()
    assert ended.episodes == 2 * NUM_ENVS  # no episode ends before the time limit
    env.end_iteration(EpisodeTotals(*(2 * total for total in ended)))  # totals of two equal ranks
    assert env.weights[1] == pytest.approx(-0.5)
    assert range_of(env) == pytest.approx([0.1, 2.4])


def test_curricula_stay_equal_on_all_ranks() -> None:
    one, other = make(NUM_ENVS, seed=1, **GLOBAL), make(NUM_ENVS, seed=2, **GLOBAL)
    rng = np.random.default_rng(0)
    for _ in range(30):
        for env in (one, other):
            env.step(torch.randn(NUM_ENVS, 4))
        shared = totals(float(rng.integers(0, 80)), float(rng.integers(1, 2000)), float(rng.uniform(0.7, 1.0)))
        for env in (one, other):
            env.end_iteration(shared)
        assert torch.equal(one.find_command("velocity").ranges, other.find_command("velocity").ranges)
        assert torch.equal(one.weights, other.weights)
    assert range_of(one) != [0.5, 2.0]
    assert one.weights[1] != -0.1


def test_a_loaded_state_continues_the_curricula() -> None:
    whole, resumed = make(NUM_ENVS, **ALL), make(NUM_ENVS, seed=9, **ALL)
    move(whole, TILE_M)
    end_episodes(whole, whole.env_ids % 2 == 0)
    whole.step(torch.zeros(NUM_ENVS, 4))
    whole.end_iteration(totals(60.0, 2000.0, 0.95))
    resumed.load_state(whole.state())
    for env in (whole, resumed):
        torch.manual_seed(3)
        move(env, TILE_M)
        end_episodes(env, env.env_ids % 3 == 0)
        env.step(torch.zeros(NUM_ENVS, 4))
        env.end_iteration(totals(30.0, 2000.0, 0.92))
    assert levels(whole).unique().tolist() == [0, 1, 2]
    assert torch.equal(levels(whole), levels(resumed))
    assert torch.equal(whole.origins, resumed.origins)
    assert torch.equal(whole.weights, resumed.weights)
    assert range_of(whole) == range_of(resumed) != [0.5, 2.0]
    assert torch.equal(whole.command("velocity"), resumed.command("velocity"))


@pytest.mark.parametrize(("num_ranks", "num_envs"), [(2, 5), (3, 24), (1, 1)])
def test_curricula_resume_on_other_ranks(num_ranks: int, num_envs: int) -> None:
    config = dataclasses.replace(make(1).cfg, **ALL)
    ranks = [Env(config, NUM_ENVS // 2, "cpu", first_env_id=NUM_ENVS // 2 * rank) for rank in (0, 1)]
    for env in ranks:
        env.end_iteration(totals(200.0, 8000.0, 0.95))
        levels(env).copy_((env.env_ids + env.env_ids // 9) % NUM_LEVELS)
    before = torch.cat([levels(env) for env in ranks])
    states = [env.state() for env in ranks]
    after = [Env(config, num_envs, "cpu", first_env_id=num_envs * rank) for rank in range(num_ranks)]
    for env in after:
        env.resume_curricula(states)
        env.reset()
        assert range_of(env) == range_of(ranks[0]) != [0.5, 2.0]
        assert env.weights[1] == ranks[0].weights[1] != pytest.approx(-0.1)
        assert env.terrain is not None
        tiles = torch.from_numpy(env.terrain.origins)[levels(env), env.env_ids % NUM_COLUMNS]
        assert torch.equal(env.origins, tiles)
        assert torch.equal(env.sim.qpos[:, :2], tiles[:, :2])
    found = torch.cat([levels(env) for env in after])
    every = torch.arange(num_ranks * num_envs)
    # NUM_ENVS is a multiple of the number of columns, so saved levels repeat after NUM_ENVS envs.
    assert found.tolist() == before[every % NUM_ENVS].tolist()


def test_an_env_without_a_saved_level_for_its_column_keeps_its_level() -> None:
    few, many = make(2, **TASK), make(NUM_COLUMNS, **TASK)
    levels(few).fill_(2)
    many.resume_curricula([few.state()])
    assert levels(many).tolist() == [2, 2, 0]


@pytest.mark.parametrize(("saved", "becomes"), [(NUM_LEVELS - 1, NUM_LEVELS - 2), (-1, 0), (torch.nan, 0)])
def test_saved_levels_become_levels_of_the_terrain(saved: float, becomes: int) -> None:
    env = make(NUM_COLUMNS, **{**TASK, "sim": SHALLOW})
    env.resume_curricula([{**env.state(), "curricula.terrain.level": torch.tensor(saved).repeat(NUM_COLUMNS)}])
    assert levels(env).tolist() == [becomes] * NUM_COLUMNS


def test_a_curriculum_without_saved_state_starts_fresh() -> None:
    before, after = make(NUM_ENVS, **TASK), make(NUM_ENVS, **GLOBAL)
    after.resume_curricula([before.state()])
    after.resume_curricula([])
    assert range_of(after) == [0.5, 2.0]


def test_a_run_resumes_with_its_current_weight_and_another_number_of_envs(tmp_path: Path) -> None:
    task = registry.task_config("cartpole-balance")
    weight = curricula(weight={"of": "RewardWeight", "reward": "smooth", "weight": 3.0, "low": 0.5, "high": 0.9})
    config = dataclasses.replace(
        task,
        max_iterations=2,
        agent=dataclasses.replace(task.agent, num_steps_per_env=16),
        env=dataclasses.replace(task.env, episode_length_s=0.05, curricula=weight),
    )
    for num_envs, iterations in ((64, 2), (32, 3)):
        run = dataclasses.replace(config, num_envs=num_envs, total_num_envs=None, max_iterations=iterations)
        Runner(Env(run.env, num_envs, "cpu"), run, Rank(), tmp_path).train()
    assert [row["curriculum/weight/weight"] for row in read_metrics(tmp_path)] == [1.0, 3.0, 3.0]


@pytest.mark.usefixtures("engine_of_gpus")
def test_curricula_never_wait_for_the_device() -> None:
    steps = curricula(steps={**BOUNDS, "by": "step"})
    env = make(NUM_ENVS, **{**TASK, "curricula": {**TASK["curricula"], **GLOBAL["curricula"], **steps}})
    env.stagger()
    shared = totals(60.0, 2000.0, 0.95)
    actions = torch.zeros(NUM_ENVS, 4)
    with HostSyncs() as syncs:
        dones = [env.step(actions)[2] for _ in range(30)]
        env.end_iteration(shared)
        env.curriculum_metrics()
    assert torch.stack(dones).any()
    assert syncs.found == []


# Schedules

POINTS = ((2, -0.1), (4, -0.3), (10, -0.9))
SCHEDULE = {"of": "Schedule", "parameter": "rewards.rate", "points": POINTS}
BOUNDS = {"of": "Schedule", "parameter": "commands.velocity.0", "points": ((0, 0.0, 0.1), (20, -1.0, 2.0))}


def scheduled(**terms: dict[str, Any]) -> dict[str, Any]:
    return {**GLOBAL, "curricula": curricula(**terms)}


@pytest.mark.slow
@pytest.mark.parametrize("interpolate", [True, False])
def test_a_weight_follows_a_schedule_over_iterations(interpolate: bool) -> None:
    env = make(NUM_ENVS, **scheduled(it={**SCHEDULE, "interpolate": interpolate}), reward_scale="dt")
    times, weights = zip(*POINTS, strict=True)
    for iteration in range(13):
        held = weights[max(0, sum(time <= iteration for time in times) - 1)]
        wanted = np.interp(iteration, times, weights) if interpolate else held
        assert env.weights[1] == pytest.approx(wanted * env.step_dt_s)
        assert env.curriculum_metrics()["it/weight"] == pytest.approx(wanted)
        env.end_iteration(totals(0.0, 0.0, 0.0))
    assert env.weights[0] == pytest.approx(2.0 * env.step_dt_s)


def test_a_range_follows_a_schedule_over_control_steps() -> None:
    env = make(NUM_ENVS, **scheduled(it={**BOUNDS, "by": "step"}))
    for iteration in range(1, 7):
        for _ in range(4):
            env.step(torch.zeros(NUM_ENVS, 4))
        env.end_iteration(totals(0.0, 0.0, 0.0))
        share = min(1.0, 4 * iteration / 20)
        assert range_of(env) == pytest.approx([-share, 0.1 + 1.9 * share])
    assert env.find_command("velocity").ranges[1].tolist() == pytest.approx([-0.5, 0.5])


def test_a_schedule_continues_after_a_resume() -> None:
    config = scheduled(weight=SCHEDULE, range=BOUNDS)
    whole, same, other = make(NUM_ENVS, **config), make(NUM_ENVS, **config), make(5, **config)
    for _ in range(3):
        whole.end_iteration(totals(0.0, 0.0, 0.0))
    same.load_state(whole.state())
    other.resume_curricula([whole.state()])
    for env in (whole, same, other):
        env.end_iteration(totals(0.0, 0.0, 0.0))
        assert env.weights[1] == pytest.approx(-0.3)
        assert range_of(env) == pytest.approx([-0.2, 0.48])


# Wrong curricula are refused


@pytest.mark.parametrize(
    ("changes", "params", "start"),
    [
        ({"sim": SIM}, {"of": "TerrainLevels"}, "terrain levels: .*--env.sim.terrain"),
        ({}, {"of": "TerrainLevels", "num_start_levels": 5}, "terrain levels: num_start_levels 5: "),
        ({}, {**SETTINGS["range"], "number": 3}, "command range: number 3: "),
        ({}, {**SETTINGS["range"], "widest": (0.6, 2.5)}, "command range: widest 0.6 2.5 and step 0.4: "),
        ({}, {**SETTINGS["range"], "step": 0.0}, "command range: widest -1.0 2.5 and step 0.0: "),
        ({}, {**SETTINGS["weight"], "low": 0.6}, "reward weight: low 0.6 and high 0.6: "),
        ({}, {**SCHEDULE, "parameter": "rewards.ratio"}, "reward ratio: .* alive, rate"),
        ({}, {**SCHEDULE, "parameter": "commands.velocity.3"}, "schedule: parameter commands.velocity.3: "),
        ({}, {**SCHEDULE, "parameter": "terminations"}, "schedule: parameter terminations: "),
        ({}, {**SCHEDULE, "points": ((5, 1.0), (2, 3.0))}, "schedule: points "),
        ({}, {**SCHEDULE, "points": ((0, 1.0, 2.0), (2, 3.0, 4.0))}, "schedule: points "),
    ],
)
def test_mistakes_are_refused(changes: dict[str, Any], params: dict[str, Any], start: str) -> None:
    assert re.match(f"env.curricula.it: {start}", refused(**{**TASK, **changes, "curricula": curricula(it=params)}))
