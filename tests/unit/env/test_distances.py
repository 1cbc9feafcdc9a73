"""Distances and closest points that a config declares equal those of mj_geomDistance in MuJoCo's C library."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import CONFIG, observe

from mjlab_dist.config import DistanceConfig, EntityConfig, EnvConfig, SimConfig
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError

SHAPES = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="box"><freejoint/><geom name="box" type="box" size=".1 .2 .1"/></body>
    <body name="rod">
      <freejoint/>
      <geom name="rod" type="capsule" size=".05 .2"/>
      <geom name="tip" size=".08" pos="0 0 .3"/>
    </body>
  </worldbody>
  <actuator><motor name="push" site="here" gear="1 0 0 0 0 0"/></actuator>
  <worldbody><body pos="0 0 9"><joint/><geom size=".1"/><site name="here"/></body></worldbody>
</mujoco>"""

DRUM = """
<mujoco>
  <worldbody><body name="drum"><freejoint/><geom name="box" type="cylinder" size=".1 .15"/></body></worldbody>
</mujoco>"""

MAX_M = 0.8

DISTANCES = {
    "geoms": DistanceConfig(names=("rod|tip",), other_names=("box", "floor"), entity="", other_entity="", max_m=MAX_M),
    "drum": DistanceConfig(names=("box",), entity="drum", other_names=("rod",), other_kind="body", max_m=MAX_M),
}

NUM_ENVS = 16


def config(**changes: Any) -> EnvConfig:
    sim = SimConfig(
        model=SHAPES, entities={"drum": EntityConfig(model=DRUM)}, distances=DISTANCES, njmax=80, nconmax=24
    )
    actions = {"push": dataclasses.replace(CONFIG.actions["legs"], actuators=("push",), offset=0.0)}
    terms = {name: observe("SurfaceDistances", {"distances": name}) for name in DISTANCES}
    return dataclasses.replace(
        CONFIG, sim=dataclasses.replace(sim, **changes), actions=actions, observations={"actor": terms}
    )


@pytest.fixture(scope="module")
def env(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    env = Env(config(), NUM_ENVS, "cpu")
    rng = np.random.default_rng(0)
    for body in range(3):
        env.sim.qpos[:, 7 * body : 7 * body + 3] = torch.from_numpy(
            rng.uniform([-0.4, -0.4, 0.1], [0.4, 0.4, 1.2], size=(NUM_ENVS, 3))
        )
        quat = rng.normal(size=(NUM_ENVS, 4))
        start = 7 * body + 3
        env.sim.qpos[:, start : start + 4] = torch.from_numpy(quat / np.linalg.norm(quat, axis=1, keepdims=True))
    env.sim.forward()
    return env


def c_distance(data: mujoco.MjData, ones: tuple[str, ...], others: tuple[str, ...]) -> tuple[float, np.ndarray]:
    """Return the smallest distance between a geom of `ones` and one of `others`, and the closest points.

    If all distances are above MAX_M, return MAX_M and zeros.
    """
    best, points = MAX_M, np.zeros(6)
    for one in ones:
        for other in others:
            fromto = np.zeros(6)
            ids = data.model.geom(one).id, data.model.geom(other).id
            distance = mujoco.mj_geomDistance(data.model, data, *ids, MAX_M, fromto)
            if distance < best:
                best, points = distance, fromto
    return best, points


PAIRS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "geoms": {
        "rod:floor": (("rod",), ("floor",)),
        "rod:box": (("rod",), ("box",)),
        "tip:floor": (("tip",), ("floor",)),
        "tip:box": (("tip",), ("box",)),
    },
    "drum": {"drum/box:rod": (("drum/box",), ("rod", "tip"))},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_and_points_equal_those_of_mujoco(env: Env, name: str) -> None:
    found = env.find_distances(name)
    assert found.names == tuple(PAIRS[name])
    near = far = 0
    for i in range(NUM_ENVS):
        data = mujoco.MjData(env.sim.model)
        data.qpos = env.sim.qpos[i].double().numpy()
        mujoco.mj_forward(env.sim.model, data)
        for k, pair in enumerate(PAIRS[name].values()):
            distance, points = c_distance(data, *pair)
            assert float(found.distance_m[i, k]) == pytest.approx(distance, abs=1e-3)
            if 0.01 < distance < MAX_M:  # the closest points of overlapping geoms are not unique
                between = found.points_m[i, k, 1] - found.points_m[i, k, 0]
                assert float(between.norm()) == pytest.approx(distance, abs=1e-3)
                np.testing.assert_allclose(found.points_m[i, k].flatten(), points, rtol=0, atol=2e-2)
            near += distance < MAX_M
            far += distance == MAX_M
    assert near >= NUM_ENVS // 2
    assert far > 0
    assert not env.sim.overflow.any()


@pytest.mark.slow
@pytest.mark.usefixtures("env")
def test_the_observation_reads_the_distances() -> None:
    env = Env(config(), 2, "cpu")
    seen = env.step(torch.zeros(2, 1))[0]["actor"]
    expected = torch.cat([env.find_distances(name).distance_m for name in DISTANCES], dim=1)
    assert torch.equal(seen, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_m": 0.0}, "--env.sim.distances.it.max-m 0.0: must be above 0"),
        ({"names": ("hand",)}, "--env.sim.distances.it.names hand: matches none of the model's names: floor, box"),
        ({"other_entity": "dog"}, "--env.sim.distances.it.other-entity dog: is not an entity of the scene, which has"),
    ],
)
def test_a_mistake_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Env(config(distances={"it": dataclasses.replace(DISTANCES["geoms"], **changes)}), 2, "cpu")
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_unknown_distances_are_refused(env: Env) -> None:
    with pytest.raises(UserError, match=r"^sim\.distances hand: does not exist; the task has geoms, drum$"):
        env.find_distances("hand")
