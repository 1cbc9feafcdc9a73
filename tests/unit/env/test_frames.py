"""Poses and velocities of named bodies, sites and geoms equal those in MuJoCo's C library, also within entities."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import mujoco
import numpy as np
import pytest
import torch
from legged import CONFIG, SIM, end_episodes, make, observe

from mjlab_dist.config import EntityConfig, EnvConfig, EventConfig, SimConfig
from mjlab_dist.env import Env
from mjlab_dist.env.frames import Frames
from mjlab_dist.errors import UserError

NUM_ENVS = 5
TURNED = (0.8, 0.0, 0.36, 0.48)

Kind = Literal["body", "site", "geom"]

SCENE = """
<mujoco>
  <default><default class="egg"><geom type="ellipsoid" contype="0" conaffinity="0"/></default></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1" pos="0 0 -3"/>
    <site name="mark" pos="1 2 3" quat=".5 .5 .5 .5"/>
    <body name="trunk" pos="0 0 1">
      <joint name="tail" axis="1 2 3"/>
      <geom name="egg" class="egg" size=".1 .2 .3" pos=".3 0 0" quat=".8 0 .6 0"/>
      <geom size=".1" pos="-.3 0 0"/>
      <body pos="0 0 .3"><joint type="ball"/><geom size=".1"/><site name="tip" pos=".1 .2 .3" euler="10 20 30"/></body>
    </body>
  </worldbody>
</mujoco>"""
"""A swing with a ball joint on it. Some of its names equal names in the robots. Some elements have no name.

Together with the robots and the box, it has the same number of degrees of freedom and kinds of contact as the scene in
test_entities.py, so both need the same kernels.
"""

BOX = """
<mujoco>
  <worldbody>
    <body name="box">
      <joint type="ball"/><geom size=".1"/>
      <body><joint name="lid"/><geom size=".05" pos=".2 0 0"/></body>
    </body>
  </worldbody>
</mujoco>"""
"""An object whose geoms have no names."""


def two_robots(**changes: Any) -> EnvConfig:
    """Return a config with the swing, two copies of a robot, and the box."""
    robot = EntityConfig(model=SIM.model, pos=(0.0, 0.0, 1.0))
    sim = SimConfig(
        model=SCENE,
        entities={
            "a": robot,
            "b": dataclasses.replace(robot, pos=(3.0, 0.0, 1.0), quat=TURNED),
            "box": EntityConfig(model=BOX),
        },
        njmax=120,
        nconmax=40,
    )
    actions = {"legs": dataclasses.replace(CONFIG.actions["legs"], actuators=("[ab]/.*_leg",), offset=0.0)}
    return dataclasses.replace(CONFIG, sim=sim, actions=actions, **changes)


@pytest.fixture(scope="module")
def env(engine: str) -> Env:  # noqa: ARG001 (there are envs for each engine)
    env = Env(two_robots(), NUM_ENVS, "cpu")
    scatter(env)
    return env


def scatter(env: Env, seed: int = 0) -> None:
    """Put every env into a different random state."""
    rng = np.random.default_rng(seed)
    model = env.sim.model
    for i in range(env.num_envs):
        qpos = model.qpos0.copy()
        mujoco.mj_integratePos(model, qpos, rng.normal(size=model.nv), 0.5)
        env.sim.qpos[i] = torch.from_numpy(qpos)
    env.sim.qvel.copy_(torch.from_numpy(rng.normal(size=(env.num_envs, model.nv))))
    env.sim.forward()


def c_data(env: Env, i: int) -> mujoco.MjData:
    data = mujoco.MjData(env.sim.model)
    data.qpos, data.qvel = env.sim.qpos[i].double().numpy(), env.sim.qvel[i].double().numpy()
    mujoco.mj_forward(env.sim.model, data)
    return data


OBJECTS = {
    "body": mujoco.mjtObj.mjOBJ_XBODY,
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
}


def pose(data: mujoco.MjData, kind: str, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the position and the rotation matrix of an element in MuJoCo's C library."""
    prefix = "" if kind == "body" else f"{kind}_"
    return getattr(data, f"{prefix}xpos")[i], getattr(data, f"{prefix}xmat")[i].reshape(3, 3)


def c_velocity(data: mujoco.MjData, kind: str, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the linear and angular velocity of an element in the world frame in MuJoCo's C library."""
    both = np.zeros(6)
    mujoco.mj_objectVelocity(data.model, data, OBJECTS[kind], i, both, 0)
    return both[3:], both[:3]


def matrix(quat: torch.Tensor) -> np.ndarray:
    result = np.zeros(9)
    mujoco.mju_quat2Mat(result, quat.double().numpy())
    return result.reshape(3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["body", "site", "geom"])
def test_poses_and_velocities_in_the_world_equal_those_of_mujoco(env: Env, kind: Kind) -> None:
    found = env.find_frames(kind, (".*",))
    count = len(found.names)
    assert found.pos.shape == found.linear_velocity.shape == found.angular_velocity.shape == (NUM_ENVS, count, 3)
    assert found.quat.shape == (NUM_ENVS, count, 4)
    assert count == {"body": env.sim.model.nbody, "site": env.sim.model.nsite, "geom": env.sim.model.ngeom}[kind]
    for i in range(NUM_ENVS):
        data = c_data(env, i)
        for item in range(count):
            pos, rotation = pose(data, kind, item)
            linear, angular = c_velocity(data, kind, item)
            np.testing.assert_allclose(found.pos[i, item], pos, rtol=0, atol=1e-5)
            np.testing.assert_allclose(matrix(found.quat[i, item]), rotation, rtol=0, atol=1e-5)
            np.testing.assert_allclose(found.linear_velocity[i, item], linear, rtol=0, atol=2e-5)
            np.testing.assert_allclose(found.angular_velocity[i, item], angular, rtol=0, atol=2e-5)
    assert found.linear_velocity.abs().max() > 1


def relative_in_c(data: mujoco.MjData, one: tuple[str, int], other: tuple[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pose of one frame in another frame."""
    (pos, rotation), (origin, axes) = pose(data, *one), pose(data, *other)
    return axes.T @ (pos - origin), axes.T @ rotation


@pytest.mark.parametrize("reference", [("site", "b/FL_foot"), ("body", "a/trunk"), ("geom", "floor")])
def test_relative_poses_and_their_derivatives(env: Env, reference: tuple[Kind, str]) -> None:
    kind, name = reference
    other = env.find_frames(kind, (name,))
    model = env.sim.model
    other_id = getattr(model, kind)(name).id
    for mine in ("body", "site", "geom"):
        found = env.find_frames(mine, (".*FR.*|trunk|mark",))
        ids = [getattr(model, mine)(one).id for one in found.names]
        relative = found.relative_to(other)
        assert relative.names == found.names
        for i in range(NUM_ENVS):
            data, later = c_data(env, i), c_data(env, i)
            dt = 1e-6
            mujoco.mj_integratePos(model, later.qpos, data.qvel, dt)
            mujoco.mj_forward(model, later)
            for item, one in enumerate(ids):
                pos, rotation = relative_in_c(data, (mine, one), (kind, other_id))
                next_pos, next_rotation = relative_in_c(later, (mine, one), (kind, other_id))
                spin = (next_rotation - rotation) @ rotation.T / dt
                angular = np.array([spin[2, 1], spin[0, 2], spin[1, 0]])
                np.testing.assert_allclose(relative.pos[i, item], pos, rtol=0, atol=1e-5)
                np.testing.assert_allclose(matrix(relative.quat[i, item]), rotation, rtol=0, atol=1e-5)
                np.testing.assert_allclose(relative.linear_velocity[i, item], (next_pos - pos) / dt, rtol=0, atol=1e-3)
                np.testing.assert_allclose(relative.angular_velocity[i, item], angular, rtol=0, atol=1e-3)


def test_each_frame_can_have_its_own_reference(env: Env) -> None:
    mine, other = env.find_bodies(("a/.L",)), env.find_bodies(("b/.L",))
    both = mine.relative_to(other)
    for i in range(2):
        alone = env.find_bodies((mine.names[i],)).relative_to(env.find_bodies((other.names[i],)))
        assert torch.equal(both.pos[:, i], alone.pos[:, 0])
        assert torch.equal(both.linear_velocity[:, i], alone.linear_velocity[:, 0])
    with pytest.raises(UserError, match=r"^reference .*: has 2 frames; it must have 1 or 4$"):
        env.find_bodies(("a/[FR].",)).relative_to(other)


@pytest.mark.usefixtures("env")
def test_observations_of_frames() -> None:
    frames = {"names": (".*_foot",), "kind": "site", "entity": "a"}
    to = {"reference": "trunk", "reference_entity": "b"}
    terms = {
        "pos": observe("FramePositions", {**frames, **to}),
        "turn": observe("FrameOrientations", {**frames, **to}),
        "linear": observe("FrameLinearVelocities", {**frames, **to}),
        "angular": observe("FrameAngularVelocities", {**frames, **to}),
        "far": observe("FrameDistances", {**frames, **to}),
        "world": observe("FramePositions", {"names": ("trunk",), "entity": "a"}),
        "height": observe("FrameDistances", {"names": ("trunk",), "entity": "a"}),
    }
    observing = Env(two_robots(observations={"actor": terms}), NUM_ENVS, "cpu")
    scatter(observing)
    observing.origins[:, 0] = torch.arange(NUM_ENVS)
    seen = observing._observe(observing._everywhere)["actor"]
    columns = observing.observation_columns()["actor"]
    values = {name: seen[:, columns[name]].reshape(NUM_ENVS, -1) for name in terms}
    expected = observing.find_sites((".*_foot",), "a").relative_to(observing.find_bodies(("trunk",), "b"))
    trunk = observing.find_bodies(("a/trunk",)).pos[:, 0] - observing.origins
    assert torch.equal(values["pos"], expected.pos.flatten(1))
    assert torch.equal(values["linear"], expected.linear_velocity.flatten(1))
    assert torch.equal(values["angular"], expected.angular_velocity.flatten(1))
    assert torch.equal(values["far"], expected.pos.norm(dim=2))
    assert torch.equal(values["world"], trunk)
    assert torch.equal(values["height"], trunk.norm(dim=1, keepdim=True))
    first = np.array([[matrix(quat)[:, :2].T.flatten() for quat in row] for row in expected.quat])
    np.testing.assert_allclose(values["turn"], first.reshape(NUM_ENVS, -1), rtol=0, atol=1e-5)


def count_runs(frames: Frames, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    runs: list[None] = []
    run = frames._run
    monkeypatch.setattr(frames, "_run", lambda: runs.append(run()))
    return runs


def test_values_are_computed_once_per_state_and_only_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(3)
    feet = env.find_sites((".*_foot",))
    assert env.find_sites((".._foot",)) is feet
    runs = count_runs(feet, monkeypatch)
    env.step(torch.zeros(3, 4))
    assert not runs
    for expected in (1, 2):
        for _ in range(3):
            _ = feet.pos, feet.quat, feet.linear_velocity, feet.angular_velocity
        assert len(runs) == expected
        env.sim.forward()


def test_a_reset_of_some_envs_is_seen_after_forward() -> None:
    env = make(4, sim=dataclasses.replace(SIM, forward_before_observation=True))
    trunk = env.find_bodies(("trunk",))
    home = trunk.pos[:, 0].clone()
    for _ in range(5):
        env.sim.qvel[:, 0] = 1.0
        env.step(torch.zeros(4, 4))
    assert (trunk.pos[:, 0, 0] - home[:, 0] > 0.02).all()
    ends = torch.tensor([True, False, True, False])
    end_episodes(env, ends)
    env.step(torch.zeros(4, 4))
    torch.testing.assert_close(trunk.pos[ends, 0], home[ends])
    assert (trunk.pos[~ends, 0, 0] - home[~ends, 0] > 0.02).all()


# Entities


def test_names_within_an_entity_have_no_prefix(env: Env) -> None:
    robot = ("FL_hip", "FR_hip", "RL_hip", "RR_hip", "tail")
    for entity in ("a", "b"):
        found = env.find_joints((".*",), entity=entity)
        assert found.names == tuple(f"{entity}/{name}" for name in robot)
        assert env.find_bodies(("FL|tail",), entity).names == (f"{entity}/FL", f"{entity}/tail")
    assert env.find_joints((".*",), entity="").names == ("tail",)
    of_robots = tuple(f"{entity}/{name}" for entity in ("a", "b") for name in robot)
    assert env.find_joints((".*",)).names == ("tail", *of_robots, "box/lid")
    assert env.find_bodies(("trunk",), "").names == ("trunk",)
    columns = env.find_joints((".*",), entity="b").qpos.ids
    assert columns == tuple(env.sim.model.joint(f"b/{name}").qposadr[0] for name in robot)


def test_elements_without_a_name_belong_to_the_entity_of_their_body(env: Env) -> None:
    assert env.find_geoms((".*",), "box").names == ("", "")
    assert env.find_bodies((".*",), "box").names == ("box/box", "")
    assert env.find_geoms((".*",), "").names == ("floor", "egg", "", "")


@pytest.mark.parametrize("find", ["find_joints", "find_bodies", "find_sites", "find_geoms"])
def test_an_unknown_entity_is_refused(env: Env, find: str) -> None:
    with pytest.raises(UserError, match=r"^entity dog: is not an entity of the scene, which has a, b, box; "):
        getattr(env, find)((".*",), entity="dog")
    with pytest.raises(UserError, match=r"matches none of the model's names"):
        getattr(env, find)(("a/.*",), entity="a")


def test_terms_of_joints_take_an_entity() -> None:
    draw = {"joints": (".*_hip",), "entity": "b", "position": (0.3, 0.3)}
    observed = {
        "a": observe("JointPositions", {"entity": "a"}),
        "b": observe("JointPositions", {"entity": "b"}),
        "swing": observe("JointVelocities", {"entity": ""}),
    }
    events = {"b": EventConfig(func="mjlab_dist.mdp.events:DrawJoints", params=draw)}
    env = Env(two_robots(observations={"actor": observed}, events=events), 2, "cpu")
    seen = env.reset()["actor"]
    assert seen.shape == (2, 11)
    assert seen[0].tolist() == pytest.approx([0.0] * 5 + [0.3] * 4 + [0.0] * 2)
