"""Terrain: its shape matches the config, and contacts match calculated distances and MuJoCo's C code."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import torch

from mjlab_dist.config import SimConfig, TerrainConfig, TerrainPartConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import Simulation, build_model, start_warp
from mjlab_dist.sim.terrain import Terrain, add_terrain, crop_terrain

if TYPE_CHECKING:
    from conftest import Command

PARTS = {
    "flat": TerrainPartConfig(kind="flat"),
    "rough": TerrainPartConfig(kind="rough", height_m=(0.02, 0.1), width_m=(0.2, 0.2)),
    "up": TerrainPartConfig(kind="slope_up", slope=(0.1, 0.5)),
    "down": TerrainPartConfig(kind="slope_down", slope=(0.1, 0.5)),
    "stairs_up": TerrainPartConfig(kind="stairs_up", height_m=(0.05, 0.2), width_m=(0.4, 0.3)),
    "stairs_down": TerrainPartConfig(kind="stairs_down", height_m=(0.05, 0.2), width_m=(0.4, 0.3)),
    "boxes": TerrainPartConfig(kind="boxes", height_m=(0.05, 0.3), width_m=(0.3, 0.6)),
    "gaps": TerrainPartConfig(kind="gaps", height_m=(0.4, 1.0), width_m=(0.1, 0.6)),
}
CONFIG = TerrainConfig(parts=PARTS, num_levels=3, num_columns=8, tile_size_m=6.0, platform_m=1.0, border_m=1.0)
COLUMN = {name: i for i, name in enumerate(PARTS)}


@pytest.fixture(autouse=True, scope="module")
def _warp() -> None:
    start_warp("cpu")


@pytest.fixture(scope="module")
def terrain() -> Terrain:
    return Terrain(CONFIG)


def tile(terrain: Terrain, name: str, level: int) -> np.ndarray:
    """Return the heights of a tile, including its edges."""
    config = terrain.config
    points = round(config.tile_size_m / config.resolution_m)
    border = round(config.border_m / config.resolution_m)
    row, col = border + points * COLUMN[name], border + points * level
    return terrain.heights[row : row + points + 1, col : col + points + 1]


def runs(values: np.ndarray) -> list[tuple[float, int]]:
    """Return each value that occurs at least twice in succession, and the number of its occurrences."""
    starts = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    lengths = np.diff(starts, append=len(values))
    return [(float(values[s]), int(n)) for s, n in zip(starts, lengths, strict=True) if n > 1]


# Shape of the terrain


def test_the_border_is_flat_and_tiles_meet_at_height_0(terrain: Terrain) -> None:
    border = round(CONFIG.border_m / CONFIG.resolution_m)
    inside = terrain.heights[border:-border, border:-border]
    assert np.abs(terrain.heights).sum() == np.abs(inside).sum() > 0
    points = round(CONFIG.tile_size_m / CONFIG.resolution_m)
    assert not inside[::points].any()
    assert not inside[:, ::points].any()
    assert inside.shape == (8 * points + 1, 3 * points + 1)


@pytest.mark.parametrize(("name", "sign"), [("stairs_up", 1), ("stairs_down", -1)])
@pytest.mark.parametrize(("level", "height_m", "width_m"), [(0, 0.05, 0.4), (1, 0.125, 0.35), (2, 0.2, 0.3)])
def test_stairs_have_the_configured_steps(
    terrain: Terrain, name: str, sign: int, level: int, height_m: float, width_m: float
) -> None:
    heights = tile(terrain, name, level)
    middle = len(heights) // 2
    row, column = heights[middle], heights[:, middle]
    for outward in (row[middle:], row[middle::-1], column[middle:], column[middle::-1]):
        steps = runs(outward)
        assert np.allclose(np.diff([height for height, _ in steps]), sign * height_m, atol=1e-6)
        assert all(n == round(width_m / 0.05) for _, n in steps[1:-1])
        assert len(steps) == 1 + round(2.5 / 0.05) // round(width_m / 0.05)
        assert steps[-1][0] == 0.0
    assert terrain.origins[level, COLUMN[name], 2] == pytest.approx(-sign * height_m * (len(steps) - 1))


@pytest.mark.parametrize(("name", "sign"), [("up", 1), ("down", -1)])
def test_slopes_have_the_configured_angle(terrain: Terrain, name: str, sign: int) -> None:
    for level, slope in enumerate((0.1, 0.3, 0.5)):
        outward = tile(terrain, name, level)[60, 70:]  # from the platform's edge to the tile's edge
        assert np.allclose(np.diff(outward), sign * slope * 0.05, atol=1e-6)


def test_gaps_have_the_configured_depth_and_width(terrain: Terrain) -> None:
    for level, (depth_m, width_m) in enumerate([(0.4, 0.1), (0.7, 0.35), (1.0, 0.6)]):
        heights = tile(terrain, "gaps", level)
        middle = len(heights) // 2
        angles = np.linspace(0, 2 * np.pi, 97)
        along = np.arange(0.0, middle)[:, None] * [np.cos(angles), np.sin(angles)][:1]
        across = np.arange(0.0, middle)[:, None] * [np.sin(angles)]
        lowest = heights[(middle + across).round().astype(int), (middle + along).round().astype(int)].min(axis=0)
        assert np.allclose(lowest, -depth_m)
        outward = heights[middle, middle:]
        first = np.flatnonzero(outward < 0)[0] - 1
        assert np.flatnonzero(outward[first + 1 :] == 0.0)[0] + 1 == round(width_m / 0.05)
        assert first * 0.05 == 0.5  # the platform ends here


def test_boxes_have_the_configured_height_and_width(terrain: Terrain) -> None:
    for level, (height_m, width_m) in enumerate([(0.05, 0.3), (0.175, 0.45), (0.3, 0.6)]):
        heights = tile(terrain, "boxes", level)
        standing = heights[heights > 0]
        assert 0.5 * height_m <= standing.min() < standing.max() <= height_m
        assert 0.05 < (heights > 0).mean() < 0.5
        for line in heights:
            # No box is wider than the width in the config.
            assert max((n for height, n in runs(line) if height > 0), default=0) <= round(width_m / 0.05) + 1
        assert not heights[50:71, 50:71].any()


def test_rough_ground_covers_its_range(terrain: Terrain) -> None:
    for level, height_m in enumerate((0.02, 0.06, 0.1)):
        heights = tile(terrain, "rough", level)
        assert 0.9 * height_m < np.abs(heights).max() <= height_m
        assert abs(heights.mean()) < 0.1 * height_m
        # Samples are 0.2 m apart, and heights are linear between them.
        assert np.allclose(
            np.diff(heights[8:-8, 8:-8].reshape(105, -1)[:, :100].reshape(105, 25, 4), n=2)[..., 0], 0, atol=1e-6
        )


def test_columns_follow_the_shares_of_parts() -> None:
    def columns(shares: dict[str, float], num_columns: int) -> str:
        parts = {name: TerrainPartConfig(kind="flat", share=share) for name, share in shares.items()}
        return "".join(TerrainConfig(parts=parts, num_columns=num_columns).column_parts())

    assert columns({"a": 1, "b": 1}, 4) == "aabb"
    assert columns({"a": 3, "b": 1}, 4) == "aaab"
    assert columns({"a": 0.2, "b": 0.4, "c": 0.4}, 10) == "aabbbbcccc"
    assert columns({"a": 0.1, "b": 0.1, "c": 0.1}, 3) == "abc"


def test_origins_are_in_the_middle_of_tiles_on_the_platform(terrain: Terrain) -> None:
    assert terrain.origins.shape == (3, 8, 3)
    assert terrain.origins[:, 0, 0].tolist() == [-6.0, 0.0, 6.0]
    assert terrain.origins[0, :, 1].tolist() == [-21.0, -15.0, -9.0, -3.0, 3.0, 9.0, 15.0, 21.0]
    flat_topped = [i for name, i in COLUMN.items() if name != "rough"]
    xy, z = terrain.origins[:, flat_topped, :2], terrain.origins[:, flat_topped, 2]
    assert np.allclose(terrain.height_at(xy), z)
    offsets = np.random.default_rng(0).uniform(-0.5, 0.5, size=(1000, 2))
    for level in range(3):
        under = terrain.height_at(terrain.origins[level, COLUMN["rough"], :2] + offsets)
        assert 0 <= terrain.origins[level, COLUMN["rough"], 2] - under.max() < 0.01


# The seed


def digest(seed: int) -> str:
    return hashlib.sha256(Terrain(dataclasses.replace(CONFIG, seed=seed)).heights.tobytes()).hexdigest()


@pytest.mark.slow
def test_another_process_generates_the_same_bytes(command: Command) -> None:
    script = command.script(f"import test_terrain\nprint(test_terrain.digest({CONFIG.seed}))")
    done = command(script, env={"PYTHONPATH": str(Path(__file__).parent)})
    assert done.code == 0, done.err
    assert done.out.strip() == digest(CONFIG.seed) != digest(CONFIG.seed + 1)


def test_a_tile_does_not_depend_on_the_others(terrain: Terrain) -> None:
    parts = {**PARTS, "flat": dataclasses.replace(PARTS["flat"], share=9)}
    more = Terrain(dataclasses.replace(CONFIG, num_columns=16, parts=parts))
    assert more.columns.count("rough") == 1
    fewer = Terrain(dataclasses.replace(CONFIG, num_levels=1))
    assert np.array_equal(tile(fewer, "rough", 0), tile(terrain, "rough", 0))


# Heights and contacts in MuJoCo

SHAPES = """
<mujoco>
  <option timestep="0.002" integrator="implicitfast"/>
  <default>
    <geom contype="0" conaffinity="1" condim="1" mass="1"/>
    <joint type="slide" armature="0"/>
    <default class="held"><joint damping="1e7"/></default>
  </default>
  <asset>
    <texture name="checker" type="2d" builtin="checker" width="8" height="8"/><material name="stone" texture="checker"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1" contype="3" conaffinity="5" friction=".7 .01 .002" material="stone"
      priority="-1" group="1"/>
    <body name="sphere"><joint class="held" axis="1 0 0"/><joint class="held" axis="0 1 0"/><joint axis="0 0 1"/>
      <geom name="sphere" size=".06"/></body>
    <body name="capsule"><joint class="held" axis="1 0 0"/><joint class="held" axis="0 1 0"/><joint axis="0 0 1"/>
      <geom name="capsule" type="capsule" size=".03 .15" euler="70 0 35"/></body>
    <body name="box"><joint class="held" axis="1 0 0"/><joint class="held" axis="0 1 0"/><joint axis="0 0 1"/>
      <geom name="box" type="box" size=".15 .1 .05" euler="8 -5 30"/></body>
  </worldbody>
</mujoco>
"""
SIM = SimConfig(model=SHAPES, terrain=CONFIG, njmax=32, nconmax=32, engine="warp")
NUM_ENVS = 192
NAMES = ("sphere", "capsule", "box")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return build_model(SIM)


def test_terrain_keeps_the_properties_of_the_floor(model: mujoco.MjModel) -> None:
    floor = model.geom("floor")
    assert floor.type == mujoco.mjtGeom.mjGEOM_HFIELD
    assert (floor.contype, floor.conaffinity, floor.priority, floor.group) == (3, 5, -1, 1)
    assert np.allclose(floor.friction, [0.7, 0.01, 0.002])
    assert floor.matid == model.material("stone").id


def test_a_scene_without_a_floor_receives_terrain() -> None:
    spec = mujoco.MjSpec.from_string("<mujoco/>")
    add_terrain(spec, CONFIG)
    assert spec.compile().geom("floor").type == mujoco.mjtGeom.mjGEOM_HFIELD


def ray_heights(model: mujoco.MjModel, xy: np.ndarray) -> np.ndarray:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    hit = np.zeros(1, dtype=np.int32)
    group = np.array([0, 1, 0, 0, 0, 0], dtype=np.uint8)  # the floor is in group 1
    start = [np.array([*point, 5.0]) for point in xy]
    down = np.array([0.0, 0.0, -1.0])
    return np.array([5.0 - mujoco.mj_ray(model, data, point, down, group, 1, -1, hit) for point in start])


def points(terrain: Terrain, num: int, seed: int = 0) -> np.ndarray:
    half = np.array(terrain.size_m) - 0.5
    return np.random.default_rng(seed).uniform(-half, half, size=(num, 2))


def test_heights_between_grid_points_equal_those_of_mujoco(model: mujoco.MjModel, terrain: Terrain) -> None:
    xy = points(terrain, 2000)
    assert np.allclose(terrain.height_at(xy), ray_heights(model, xy), atol=1e-4)
    assert np.ptp(terrain.height_at(xy)) > 2.0


def test_a_cropped_terrain_has_the_same_heights(model: mujoco.MjModel, terrain: Terrain) -> None:
    center = terrain.origins[1, COLUMN["stairs_up"], :2]
    part = crop_terrain(model, (float(center[0]), float(center[1])), 3.5)
    xy = center + np.random.default_rng(1).uniform(-3.4, 3.4, size=(500, 2))
    assert part.hfield_nrow[0] * part.hfield_ncol[0] == 141 * 141
    assert np.allclose(ray_heights(part, xy), terrain.height_at(xy), atol=1e-4)
    assert model.hfield_nrow[0] == terrain.heights.shape[0]
    assert 0 < part.vis.map.znear * part.stat.extent < 0.11, "objects at 0.11 m from the camera are drawn"


def lower_side(model: mujoco.MjModel, name: str, steps: int = 61) -> tuple[np.ndarray, np.ndarray]:
    """Cast rays in MuJoCo's C code from below a shape.

    Return the horizontal offsets, relative to the shape's center, at which rays hit the shape, (n, 2). Also return the
    height of the shape's lower side at these offsets, relative to the center, (n,).
    """
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    geom = model.geom(name).id
    pos, mat = np.zeros(3), data.geom_xmat[geom]
    reach = model.geom_rbound[geom]
    grid = np.stack(np.meshgrid(*[np.linspace(-reach, reach, steps)] * 2), axis=-1).reshape(-1, 2)
    distances = [
        mujoco.mju_rayGeom(
            pos, mat, model.geom_size[geom], np.array([*offset, -1.0]), np.array([0.0, 0.0, 1.0]), model.geom_type[geom]
        )
        for offset in grid
    ]
    hit = np.array(distances) >= 0
    return grid[hit], np.array(distances)[hit] - 1.0


class Dropped(NamedTuple):
    """Shapes after their fall."""

    sim: Simulation
    xy: np.ndarray
    """Horizontal positions from which shapes fell, (num_envs, 3, 2)."""
    rest: np.ndarray
    """Calculated height at which a shape touches the terrain, (num_envs, 3)."""
    gentle: np.ndarray
    """False for a shape on a wall, where it would slide for a long time, (num_envs, 3)."""


@pytest.fixture(scope="module")
def dropped(model: mujoco.MjModel, terrain: Terrain) -> Dropped:
    sim = Simulation(model, NUM_ENVS, "cpu", SIM)
    xy = points(terrain, NUM_ENVS * 3).reshape(NUM_ENVS, 3, 2)
    rest, gentle = np.zeros((NUM_ENVS, 3)), np.ones((NUM_ENVS, 3), dtype=bool)
    for i, name in enumerate(NAMES):
        offsets, below = lower_side(model, name)

        def rest_at(xy: np.ndarray, offsets: np.ndarray = offsets, below: np.ndarray = below) -> np.ndarray:
            return (terrain.height_at(xy[:, None] + offsets) - below).max(axis=1)

        rest[:, i] = rest_at(xy[:, i])
        for shift in ([0.004, 0.0], [-0.004, 0.0], [0.0, 0.004], [0.0, -0.004]):
            gentle[:, i] &= np.abs(rest_at(xy[:, i] + shift) - rest[:, i]) < 0.008
        sim.qpos[:, 3 * i : 3 * i + 2] = torch.tensor(xy[:, i])
        sim.qpos[:, 3 * i + 2] = torch.tensor(rest[:, i]) + 0.02
    for _ in range(500):
        sim.step()
    return Dropped(sim, xy, rest, gentle)


@pytest.mark.slow
@pytest.mark.parametrize(("i", "tolerance_m"), [(0, 1.5e-3), (1, 3e-3), (2, 8e-3)], ids=NAMES)
def test_shapes_come_to_rest_on_the_surface(i: int, tolerance_m: float, dropped: Dropped) -> None:
    sim, xy, rest, gentle = dropped
    kept = gentle[:, i]
    assert not sim.overflow.any()
    assert kept.mean() > 0.8
    assert np.abs(sim.qpos[:, 3 * i : 3 * i + 2].numpy() - xy[:, i]).max() < 1e-3
    assert sim.qvel[:, 3 * i + 2].numpy()[kept].max() < 0.05
    assert np.abs(sim.qpos[:, 3 * i + 2].numpy() - rest[:, i])[kept].max() < tolerance_m


def test_shapes_rest_at_the_same_place_in_mujoco_c(model: mujoco.MjModel, dropped: Dropped) -> None:
    moved = np.zeros((40, 3))
    for env in range(len(moved)):
        data = mujoco.MjData(model)
        data.qpos = dropped.sim.qpos[env]
        for _ in range(300):
            mujoco.mj_step(model, data)
        moved[env] = data.qpos[2::3] - dropped.sim.qpos[env, 2::3].numpy()
    assert np.abs(moved)[dropped.gentle[:40]].max() < 3e-3
    assert np.median(np.abs(moved)) < 3e-4


def signed_distance(terrain: Terrain, point: np.ndarray, reach: float) -> float:
    """Return the distance from a point to the nearest triangle within reach. It is negative below the surface."""
    cell = terrain.config.resolution_m
    first = ((point[:2] - reach + terrain.size_m) / cell).astype(int)
    last = ((point[:2] + reach + terrain.size_m) / cell).astype(int) + 1
    cols, rows = (np.arange(low, high + 1) for low, high in zip(first, last, strict=True))
    x, y = np.meshgrid(cols * cell - terrain.size_m[0], rows * cell - terrain.size_m[1])
    grid = np.stack([x, y, terrain.heights[np.ix_(rows, cols)]], axis=-1) - point
    a, b, c, d = (
        grid[i : len(rows) - 1 + i, j : len(cols) - 1 + j].reshape(-1, 3) for i, j in ((0, 0), (0, 1), (1, 1), (1, 0))
    )
    triangles = np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)])
    nearest = np.inf
    for i, j in ((0, 1), (1, 2), (2, 0)):
        start, along = triangles[:, i], triangles[:, j] - triangles[:, i]
        at = (-(start * along).sum(1) / (along * along).sum(1)).clip(0, 1)
        nearest = min(nearest, np.linalg.norm(start + at[:, None] * along, axis=1).min())
    for corners in triangles:
        weights = np.linalg.solve(corners @ corners.T + 1e-18 * np.eye(3), np.ones(3))  # nearest point in the plane
        if (weights >= 0).all():
            nearest = min(nearest, float(np.linalg.norm(weights @ corners / weights.sum())))
    return nearest if point[2] > terrain.height_at(point[:2]) else -nearest


def test_contacts_of_a_sphere_have_its_penetration_depth(model: mujoco.MjModel, terrain: Terrain) -> None:
    sim = Simulation(model, NUM_ENVS, "cpu", SIM)
    xy = points(terrain, NUM_ENVS, seed=2)
    xy[: NUM_ENVS // 4] = np.round(xy[: NUM_ENVS // 4] / 0.3) * 0.3 + 0.01  # many points are near a step
    lift = np.random.default_rng(3).uniform(-0.03, 0.08, NUM_ENVS)
    centers = np.concatenate([xy, (terrain.height_at(xy) + lift)[:, None]], axis=1)
    sim.qpos[:, :3] = torch.tensor(centers)
    sim.qpos[:, [5, 8]] = 9.0  # the other shapes touch nothing
    sim.forward()
    contact, count = sim._data.contact, int(sim._data.nacon.numpy()[0])
    env, dist, pos = (held.numpy()[:count] for held in (contact.worldid, contact.dist, contact.pos))
    normal = contact.frame.numpy()[:count, 0]
    touching = 0
    for i in range(NUM_ENVS):
        center = sim.qpos[i, :3].double().numpy()
        expected = signed_distance(terrain, center, 0.15) - 0.06
        mine = env == i
        if abs(expected) > 1e-4:
            assert mine.any() == (expected < 0)
        if mine.any():
            touching += 1
            assert dist[mine].min() == pytest.approx(expected, abs=1e-4)
            # A contact is in the middle between the sphere's surface and the ground.
            middle = center - normal[mine] * (0.06 + 0.5 * dist[mine])[:, None]
            assert np.allclose(pos[mine], middle, atol=1e-4)
    assert touching > 0.4 * NUM_ENVS
    assert np.linalg.norm(normal, axis=1) == pytest.approx(1.0, abs=1e-5)
    # Normals point out of the ground, never into it.
    assert normal[:, 2].min() > -1e-3


def contacts(sim: Simulation, env: int, geom: str) -> list[tuple[float, np.ndarray]]:
    """Return the distance and the normal of each of a geom's contacts."""
    contact, count = sim._data.contact, int(sim._data.nacon.numpy()[0])
    mine = (contact.worldid.numpy()[:count] == env) & (contact.geom.numpy()[:count, 1] == sim.model.geom(geom).id)
    found = zip(contact.dist.numpy()[:count][mine], contact.frame.numpy()[:count, 0][mine], strict=True)
    return sorted(found, key=lambda pair: tuple(pair[1]))


def test_a_sphere_in_the_corner_of_a_stairwell_touches_floor_and_walls(model: mujoco.MjModel, terrain: Terrain) -> None:
    sim = Simulation(model, 2, "cpu", SIM)
    corner = terrain.origins[2, COLUMN["stairs_up"]] + [0.5, 0.5, 0.0]
    sim.qpos[:, [5, 8]] = 9.0
    sim.qpos[0, :3] = torch.from_numpy(np.add(corner, [-0.045, -0.045, 0.055]))
    sim.qpos[1, :3] = torch.from_numpy(np.add(corner, [-0.3, -0.3, 0.055]))
    sim.forward()
    # A wall rises by 0.2 m over a horizontal distance of 0.05 m.
    wall = np.array([-0.2, 0.0, 0.05]) / np.hypot(0.2, 0.05)
    expected = [
        (wall @ [-0.045, 0.0, 0.055] - 0.06, wall),
        (wall @ [-0.045, 0.0, 0.055] - 0.06, wall[[1, 0, 2]]),
        (-0.005, np.array([0, 0, 1])),
    ]
    for (dist, normal), (right_dist, right_normal) in zip(contacts(sim, 0, "sphere"), expected, strict=True):
        assert dist == pytest.approx(right_dist, abs=1e-5)
        assert np.allclose(normal, right_normal, atol=1e-4)
    ((dist, normal),) = contacts(sim, 1, "sphere")
    assert dist == pytest.approx(-0.005, abs=1e-5)
    assert np.allclose(normal, [0, 0, 1], atol=1e-4)


def test_no_shape_sinks_into_the_ground(model: mujoco.MjModel, terrain: Terrain) -> None:
    sim = Simulation(model, NUM_ENVS, "cpu", SIM)
    xy = points(terrain, NUM_ENVS * 3, seed=4).reshape(NUM_ENVS, 3, 2)
    lift = np.random.default_rng(5).uniform(-0.03, 0.1, size=(NUM_ENVS, 3))
    at = np.concatenate([xy, (terrain.height_at(xy) + lift)[..., None]], axis=2)
    sim.qpos.copy_(torch.from_numpy(at.reshape(NUM_ENVS, 9)))
    sim.forward()
    count = int(sim._data.nacon.numpy()[0])
    normal, dist = sim._data.contact.frame.numpy()[:count, 0], sim._data.contact.dist.numpy()[:count]
    assert count > NUM_ENVS
    assert normal[:, 2].min() > -1e-3
    assert np.linalg.norm(normal, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert -0.2 < dist.min() < dist.max() <= 0.0


@pytest.mark.slow
def test_mujoco_warp_computes_contacts_of_other_shapes_with_terrain(terrain: Terrain) -> None:
    cylinder = """
    <mujoco>
      <worldbody>
        <geom name="floor" type="plane" size="0 0 1"/>
        <body><freejoint/><geom type="cylinder" size=".1 .05"/><geom type="sphere" size=".05" pos=".5 0 0"/></body>
      </worldbody>
    </mujoco>
    """
    config = dataclasses.replace(SIM, model=cylinder)
    sim = Simulation(build_model(config), 2, "cpu", config)
    sim.qpos[:, :3] = torch.from_numpy(terrain.origins[0, COLUMN["flat"]]) + torch.tensor([0.01, 0.02, 0.06])
    for _ in range(300):
        sim.step()
    assert torch.allclose(sim.qpos[:, 2], torch.tensor(0.05), atol=2e-3)
    assert not sim.overflow.any()


def test_contacts_without_room_are_reported() -> None:
    high = SHAPES.replace("<body name", '<body pos="0 0 3" name')  # so that no shape touches anything at the start
    config = dataclasses.replace(SIM, model=high, nconmax=1)
    sim = Simulation(build_model(config), 2, "cpu", config)
    sim.step()
    assert not sim.overflow.any()
    sim.qpos[:, 2::3] = -2.95
    sim.step()
    assert (sim.overflow & int(mjw.OverflowType.NARROWPHASE)).all()


# Wrong terrains are refused


def stairs(**changes: Any) -> dict[str, Any]:
    return {"parts": {**PARTS, "stairs_up": dataclasses.replace(PARTS["stairs_up"], **changes)}}


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"num_levels": 0}, "num-levels 0: "),
        ({"num_columns": 7}, "num-columns 7: leaves no column for --env.sim.terrain.parts."),
        ({"seed": -1}, "seed -1: "),
        ({"resolution_m": 0.0}, "resolution-m 0.0: "),
        ({"resolution_m": 0.001}, "resolution-m 0.001: gives "),
        ({"tile_size_m": 6.02}, "tile-size-m 6.02: "),
        ({"tile_size_m": float("nan")}, "tile-size-m nan: "),
        ({"border_m": 0.0}, "border-m 0.0: "),
        ({"platform_m": 6.0}, "platform-m 6.0: "),
        (stairs(share=0.0), "parts.stairs-up.share 0.0: "),
        (stairs(height_m=(0.1, -0.1)), "parts.stairs-up.height-m 0.1 -0.1: "),
        (stairs(height_m=(0.1, float("inf"))), "parts.stairs-up.height-m 0.1 inf: "),
        (stairs(slope=(-0.5, 0.0)), "parts.stairs-up.slope -0.5 0.0: "),
        (stairs(width_m=(0.3, 0.05)), "parts.stairs-up.width-m 0.3 0.05: "),
        (stairs(width_m=(0.3, 2.6)), "parts.stairs-up.width-m 0.3 2.6: "),
    ],
)
def test_mistakes_are_refused_by_their_flag(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(UserError) as refusal:
        Terrain(dataclasses.replace(CONFIG, **changes))
    assert str(refusal.value).startswith(f"--env.sim.terrain.{flag}")
    assert "\n" not in str(refusal.value)


def test_a_rotated_floor_is_refused() -> None:
    spec = mujoco.MjSpec.from_string(
        '<mujoco><worldbody><geom name="floor" type="plane" size="0 0 1" euler="0 9 0"/></worldbody></mujoco>'
    )
    with pytest.raises(UserError, match=r"^--env\.sim\.terrain\.parts: .* floor .*--env\.sim\.model"):
        add_terrain(spec, CONFIG)


def test_without_parts_the_floor_is_unchanged() -> None:
    config = dataclasses.replace(SIM, terrain=TerrainConfig())
    assert build_model(config).geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE
