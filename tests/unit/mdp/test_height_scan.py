"""The height scan is compared with rays that MuJoCo's C code casts, at points that the test computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import SIM, end_episodes, event, float64, make, randomize_state, refused, term

from mjlab_dist.config import CaptureMode, ObservationConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.env import Env
from mjlab_dist.mdp.height_scan import HeightScan

SCAN = "mjlab_dist.mdp.height_scan:HeightScan"
READ = "mjlab_dist.mdp.height_scan:height_scan"
SIZE_M, SPACING_M, OFFSET_M = (1.2, 0.8), 0.2, 0.3
PARAMS: dict[str, Any] = {"size_m": SIZE_M, "spacing_m": SPACING_M, "offset_m": OFFSET_M}
STAIRS = TerrainConfig(
    parts={
        "stairs": TerrainPartConfig(kind="stairs_up", height_m=(0.1, 0.3)),
        "rough": TerrainPartConfig(kind="rough"),
    },
    num_levels=2,
    num_columns=2,
    border_m=1.0,
)
ON_STAIRS = dataclasses.replace(SIM, terrain=STAIRS)
NUM_ENVS = 6


def scanning(sim: Any = ON_STAIRS, **params: Any) -> Env:
    observations = {"actor": {"scan": ObservationConfig(func=SCAN, params={**PARAMS, **params})}}
    return make(NUM_ENVS, sim=sim, observations=observations)


def rays_of_c(env: Env, geoms: tuple[str, ...] = ("floor",)) -> np.ndarray:
    """Compute the expected scan by casting rays with MuJoCo's C code.

    The grid's x axis points in the horizontal direction of the body's x axis.
    """
    model = env.sim.model
    groups = model.geom_group.copy()
    model.geom_group[:] = [int(model.geom(i).name in geoms) for i in range(model.ngeom)]
    scans = []
    for i in range(env.num_envs):
        data = mujoco.MjData(model)
        data.qpos = float64(env.sim.qpos[i])
        mujoco.mj_forward(model, data)
        position, axis = data.body("trunk").xpos, data.body("trunk").xmat[[0, 3]]
        forward = axis / np.linalg.norm(axis)
        left = np.array([-forward[1], forward[0]])
        row = []
        for x in np.arange(-0.6, 0.61, 0.2):
            for y in np.arange(-0.4, 0.41, 0.2):
                start = np.append(position[:2] + x * forward + y * left, position[2] + 4.0)
                hit = np.zeros(1, dtype=np.int32)
                chosen = np.array([0, 1, 0, 0, 0, 0], dtype=np.uint8)
                row.append(mujoco.mj_ray(model, data, start, np.array([0.0, 0.0, -1.0]), chosen, 1, -1, hit) - 4.0)
        scans.append(row)
    model.geom_group[:] = groups
    return np.array(scans) - OFFSET_M


def spread_over_stairs(env: Env, seed: int = 3) -> None:
    randomize_state(env, seed)
    env.sim.qpos[:, :2] = torch.from_numpy(np.random.default_rng(seed).uniform(-6.0, 6.0, size=(env.num_envs, 2)))


@pytest.mark.parametrize("capture", ["physics", "off"])
def test_heights_equal_those_of_rays_in_mujoco_c(capture: CaptureMode) -> None:
    env = scanning(dataclasses.replace(ON_STAIRS, capture=capture))
    for seed in range(3):
        spread_over_stairs(env, seed)
        observed = env.reset()["actor"]  # robots are at their origins
        assert np.allclose(observed.numpy(), rays_of_c(env), atol=2e-4)
        spread_over_stairs(env, seed)
        env.step(torch.zeros(NUM_ENVS, 4))
        observed = env.get_observations()["actor"]
        assert observed.shape == (NUM_ENVS, 7 * 5)
        assert np.allclose(observed.numpy(), rays_of_c(env), atol=2e-4)
        assert np.ptp(observed.numpy(), axis=1).max() > 0.3


def test_on_a_plane_the_distance_is_the_height() -> None:
    env = scanning(SIM)
    randomize_state(env)
    env.step(torch.zeros(NUM_ENVS, 4))
    expected = (env.sim.qpos[:, 2] - OFFSET_M).unsqueeze(1).expand(-1, 35)
    assert torch.allclose(env.get_observations()["actor"], expected, atol=1e-5)


def test_the_grid_is_centered_and_has_the_configured_size() -> None:
    scan = HeightScan(scanning(SIM), size_m=(1.0, 0.5), spacing_m=0.25)
    assert scan.offsets.shape == (5 * 3, 2)
    assert scan.offsets[[0, 1, 3, -1]].tolist() == [[-0.5, -0.25], [-0.5, 0.0], [-0.25, -0.25], [0.5, 0.25]]
    assert HeightScan(scanning(SIM), size_m=(0.0, 0.0)).offsets.tolist() == [[0.0, 0.0]]


def test_rays_pass_through_geoms_that_are_not_named() -> None:
    env = scanning(dataclasses.replace(SIM, forward_before_observation=True), geoms=("floor", ".*_foot", "trunk"))
    randomize_state(env)
    env.step(torch.zeros(NUM_ENVS, 4))
    observed = env.get_observations()["actor"].numpy()
    named = ("floor", "trunk", "FL_foot", "FR_foot", "RL_foot", "RR_foot")
    assert np.allclose(observed, rays_of_c(env, named), atol=2e-4)
    assert (np.abs(observed - rays_of_c(env)) > 0.01).any()


def test_beyond_the_terrain_the_ground_is_far_below() -> None:
    env = scanning()
    env.sim.qpos[:, 0] = 40.0
    env.step(torch.zeros(NUM_ENVS, 4))
    assert torch.allclose(env.get_observations()["actor"], torch.tensor(5.0 - OFFSET_M))


def shared() -> Env:
    read = ObservationConfig(func=READ, params={"sensor": "scan"})
    return make(
        NUM_ENVS,
        sim=ON_STAIRS,
        sensors={"scan": term("height_scan:HeightScan", **PARAMS)},
        observations={"actor": {"scan": read}, "critic": {"scan": read}},
        events={"place": event("DrawRoot")},
        terminations={},
    )


def test_a_scan_is_computed_once_per_step_for_all_terms() -> None:
    env = shared()
    scan = env.sensor("scan", HeightScan)
    casts: list[int] = []
    cast = scan._cast
    scan._cast = lambda: (casts.append(1), cast())[1]
    for _ in range(3):
        env.step(torch.zeros(NUM_ENVS, 4))
    assert len(casts) == 3
    observed = env.get_observations()
    assert torch.equal(observed["actor"], observed["critic"])
    assert np.allclose(observed["actor"].numpy(), rays_of_c(env), atol=2e-4)


def test_a_new_episode_scans_the_ground_at_its_start() -> None:
    env = shared()
    env.sim.qpos[:, 0] += 1.7
    mask = torch.tensor([True, False] * (NUM_ENVS // 2))
    end_episodes(env, mask)
    observed, _, dones, _ = env.step(torch.zeros(NUM_ENVS, 4))
    assert dones.tolist() == mask.tolist()
    assert np.allclose(observed["actor"].numpy(), rays_of_c(env), atol=2e-4)


@pytest.mark.parametrize(
    ("params", "start"),
    [
        ({"spacing_m": 0.0}, "height scan: size_m 1.2 0.8 and spacing_m 0.0 "),
        ({"size_m": (-1.0, 1.0)}, "height scan: size_m -1.0 1.0 and spacing_m 0.2 "),
    ],
)
def test_mistakes_are_refused(params: dict[str, Any], start: str) -> None:
    observations = {"actor": {"scan": ObservationConfig(func=SCAN, params={**PARAMS, **params})}}
    assert refused(observations=observations, sim=SIM).startswith(f"env.observations.actor.scan: {start}")
