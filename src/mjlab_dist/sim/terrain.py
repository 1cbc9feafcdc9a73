"""Uneven ground: a grid of tiles in one height field, generated with NumPy from the seed in the config."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING

import mujoco
import numpy as np

from mjlab_dist.config import TerrainConfig, TerrainPartConfig
from mjlab_dist.config.checks import validate_terrain
from mjlab_dist.errors import UserError

if TYPE_CHECKING:
    import torch

# Name of the geom that the terrain replaces, and of its height field
FLOOR = "floor"

# Total area of the boxes of a tile divided by the area of the tile; boxes may overlap
BOX_COVERAGE = 0.3

# Width of the ground between two gaps, in m
LAND_M = 1.0

# Thickness of the ground below its lowest point, in m. Geoms that penetrate the ground are pushed out upwards.
BASE_M = 1.0

# Maximum distance between a camera and its near clipping plane, in m
NEAREST_M = 0.1

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Doubles = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Terrain:
    """Shape of the ground, and the places where episodes start.

    The grid is centered at the origin of the world. Levels are arranged along x, columns along y.

    Attributes:
        config: The config of the terrain.
        heights: Heights in m above the origin of the world, at points ``config.resolution_m`` apart,
            (num_rows, num_points_per_row): rows follow y, points in a row follow x, as in MuJoCo's height field.
        size_m: Half the extent along x and along y, in m.
        origins: Start positions of episodes, (num_levels, num_columns, 3) in m: the middle of a tile, at the height of
            the highest point of its platform.
        columns: Name of the part in each column.
    """

    def __init__(self, config: TerrainConfig) -> None:
        """Generate the ground; the same config gives bitwise identical ground."""
        validate_terrain(config)
        # Size of the grid, with a border around the tiles
        self.config = config
        self.columns = config.column_parts()
        tile, border = (round(length / config.resolution_m) for length in (config.tile_size_m, config.border_m))
        rows, cols = (border * 2 + tile * n for n in (config.num_columns, config.num_levels))
        self.size_m = (0.5 * config.resolution_m * cols, 0.5 * config.resolution_m * rows)
        self.heights: Floats = np.zeros((rows + 1, cols + 1), dtype=np.float32)

        # Heights of the tiles, and the start position in the middle of each tile
        platform = _distance(config) <= 0
        self.origins: Floats = np.zeros((config.num_levels, config.num_columns, 3), dtype=np.float32)
        for level, column in itertools.product(range(config.num_levels), range(config.num_columns)):
            heights = _make_tile(config, level, column, config.parts[self.columns[column]])
            top, left = border + tile * column, border + tile * level
            # Neighboring tiles share the points along their edges, which are all at height 0.
            self.heights[top : top + tile + 1, left : left + tile + 1] = heights
            middle = [
                config.tile_size_m * (i + 0.5 - 0.5 * n)
                for i, n in ((level, config.num_levels), (column, config.num_columns))
            ]
            self.origins[level, column] = (*middle, heights[platform].max())

    def height_at(self, xy: np.ndarray) -> Floats:
        """Return the height of the ground in m, exact on the two triangles into which MuJoCo splits a grid cell."""
        # Grid cell, and the position in it from 0 to 1 along each axis
        places = (np.asarray(xy, dtype=np.float64) + self.size_m) / self.config.resolution_m
        limits = np.array(self.heights.shape[::-1]) - 1
        places = places.clip(0, limits)
        corner = np.minimum(places.astype(np.int64), limits - 1)
        x, y = np.moveaxis(places - corner, -1, 0)
        col, row = np.moveaxis(corner, -1, 0)
        near, far = self.heights[row, col], self.heights[row + 1, col + 1]
        # The diagonal runs from the corner with the smallest x and y to the corner with the largest.
        other = np.where(x > y, self.heights[row, col + 1], self.heights[row + 1, col])
        more, less = np.maximum(x, y), np.minimum(x, y)
        return ((1 - more) * near + (more - less) * other + less * far).astype(np.float32)


def add_terrain(spec: mujoco.MjSpec, config: TerrainConfig) -> None:
    """Turn the geom ``floor`` into the terrain; it keeps its friction, material, contact bits and solver parameters."""
    if not config.parts:
        return
    # Height field. MuJoCo scales the lowest height to 0 and the highest to 1; span must be positive on flat ground too.
    terrain = Terrain(config)
    low, high = float(terrain.heights.min()), float(terrain.heights.max())
    span = max(high - low, 1e-6)
    spec.add_hfield(
        name=FLOOR,
        nrow=terrain.heights.shape[0],
        ncol=terrain.heights.shape[1],
        size=[*terrain.size_m, span, BASE_M],
        userdata=((terrain.heights.astype(np.float64) - low) / span).ravel(),
    )
    # The floor: a height field instead of a plane
    floor = spec.geom(FLOOR) or spec.worldbody.add_geom(name=FLOOR)
    turned = floor.alt.type != mujoco.mjtOrientation.mjORIENTATION_QUAT or floor.quat.tolist() != [1, 0, 0, 0]
    if floor.parent != spec.worldbody or turned:
        raise UserError(
            "--env.sim.terrain.parts: the geom floor of --env.sim.model must belong to the world body, without a "
            "rotation; change the MJCF"
        )
    floor.type = mujoco.mjtGeom.mjGEOM_HFIELD
    floor.hfieldname = FLOOR
    floor.size = [0.0, 0.0, 0.0]
    floor.pos = [0.0, 0.0, low]


def crop_terrain(model: mujoco.MjModel, center_m: tuple[float, float], half_m: float) -> mujoco.MjModel:
    """Return a copy of the model with only a square of its terrain, because rendering all of it takes many seconds."""
    floor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, FLOOR)
    if floor < 0 or model.geom_type[floor] != mujoco.mjtGeom.mjGEOM_HFIELD:
        return model

    # Rows and columns of the height field that the square covers
    cropped = copy.copy(model)
    field = int(model.geom_dataid[floor])
    shape = np.array([model.hfield_ncol[field], model.hfield_nrow[field]])
    cell = 2 * model.hfield_size[field, :2] / (shape - 1)
    corner = np.add(center_m, [[-half_m], [half_m]]) - model.geom_pos[floor, :2]
    first, last = np.round((corner + model.hfield_size[field, :2]) / cell).astype(int).clip(0, shape - 1)

    # Heights, size and position of the smaller field
    adr = int(model.hfield_adr[field])
    heights = model.hfield_data[adr : adr + shape.prod()].reshape(shape[1], shape[0])
    kept = heights[first[1] : last[1] + 1, first[0] : last[0] + 1]
    cropped.hfield_nrow[field], cropped.hfield_ncol[field] = kept.shape
    cropped.hfield_data[adr : adr + kept.size] = kept.ravel()
    cropped.geom_pos[floor, :2] += (first + last - (shape - 1)) * cell / 2
    cropped.hfield_size[field, :2] = (last - first) * cell / 2

    # znear is a multiple of the extent of the model: with 100 m of terrain it would clip legs near the camera.
    cropped.vis.map.znear = min(model.vis.map.znear, NEAREST_M / model.stat.extent)
    return cropped


def _make_tile(config: TerrainConfig, level: int, column: int, part: TerrainPartConfig) -> Floats:
    """Return the heights of one tile in m, (n, n), 0 along its edge."""
    # Each quantity has the minimum of its range on the first level, and the maximum on the last.
    difficulty = level / max(config.num_levels - 1, 1)
    height_m, width_m, slope = (
        low + (high - low) * difficulty for low, high in (part.height_m, part.width_m, part.slope)
    )
    width = round(width_m / config.resolution_m)
    distance = _distance(config)
    random = np.random.default_rng([config.seed, level, column])
    match part.kind:
        case "rough":
            heights = height_m * _rough(distance, width, random)
        case "slope_up" | "slope_down":
            heights = slope * config.resolution_m * (distance.max() - distance.clip(min=0))
        case "stairs_up" | "stairs_down":
            num_steps = distance.max() // width
            heights = height_m * (num_steps - np.ceil(distance / width)).clip(0, num_steps)
        case "boxes":
            heights = height_m * _boxes(distance, width, random)
        case "gaps":
            heights = height_m * _gaps(distance, width, round(LAND_M / config.resolution_m))
        case _:
            heights = np.zeros(distance.shape)
    upward = part.kind.endswith("_up")  # robots start in the middle, which is then lower than the edge
    return (-heights if upward else heights).astype(np.float32)


def _rough(distance: Integers, width: int, random: np.random.Generator) -> Doubles:
    """Return heights in [-1, 1): random at points ``width`` apart, linear in between, and fading to 0 at the edge."""
    side = len(distance)
    drawn = random.uniform(-1.0, 1.0, size=(side // width + 2,) * 2)
    place = np.arange(side) / width
    before = place.astype(np.int64)
    part = place - before
    rows = drawn[before] * (1 - part)[:, None] + drawn[before + 1] * part[:, None]
    heights = rows[:, before] * (1 - part) + rows[:, before + 1] * part
    return heights * ((distance.max() - distance) / width).clip(max=1.0)


def _boxes(distance: Integers, width: int, random: np.random.Generator) -> Doubles:
    """Return boxes with side ``width`` and heights in [0.5, 1); 0 on the platform and at the edge of the tile."""
    side = len(distance)
    heights = np.zeros(distance.shape)
    corners = random.integers(1, side - 1 - width, size=(round(BOX_COVERAGE * (side / width) ** 2), 2))
    for (row, col), height in zip(corners, random.uniform(0.5, 1.0, size=len(corners)), strict=True):
        box = heights[row : row + width + 1, col : col + width + 1]
        np.maximum(box, height, out=box)
    heights[distance <= 0] = 0.0
    return heights


def _gaps(distance: Integers, width: int, land: int) -> Doubles:
    """Return -1 in square rings around the platform that are ``width`` wide and ``land`` apart; 0 elsewhere."""
    period = width + land
    starts = np.arange(0, distance.max() - width + 1, period)
    inside = [(distance > start) & (distance < start + width) for start in starts]
    return -np.any(inside, axis=0).astype(np.float64)


def _distance(config: TerrainConfig) -> Integers:
    """Return the distance of each point of a tile from the platform, in points, (n, n); 0 or less on the platform."""
    tile, platform = (round(length / config.resolution_m) for length in (config.tile_size_m, config.platform_m))
    twice = np.abs(2 * np.arange(tile + 1) - tile)
    return (np.maximum(twice[:, None], twice) - platform) // 2


def start_positions(terrain: Terrain | None, env_ids: torch.Tensor) -> torch.Tensor:
    """Distribute envs over the tiles of a terrain, first over columns, then over levels; return where they start.

    Args:
        env_ids: Ids of the envs in the whole run, (num_envs,) of int64.

    Returns:
        Middle of each env's tile in the world frame, in m, (num_envs, 3); 0 without terrain.
    """
    import torch  # the launcher needs only the rest of this module

    if terrain is None:
        return torch.zeros(len(env_ids), 3, device=env_ids.device)
    tiles = torch.as_tensor(terrain.origins, dtype=torch.float32, device=env_ids.device)
    num_levels, num_columns = tiles.shape[:2]
    return tiles[(env_ids // num_columns) % num_levels, env_ids % num_columns]
