"""Terms and randomizations for one entity of a scene with two robots. Expected values come from MuJoCo's C library."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from legged import CONFIG, DT_S, SIM, float64

from mjlab_dist.config import (
    EntityConfig,
    EnvConfig,
    EventConfig,
    ParamValue,
    RandomizationConfig,
    SimConfig,
    TermConfig,
)
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.mdp.height_scan import HeightScan
from mjlab_dist.mdp.motion import Motion

NUM_ENVS = 4
MODEL = """
<mujoco>
  <option timestep=".005"/>
  <worldbody>
    <geom name="ground" type="plane" size="9 9 .1"/>
    <body name="crate" pos="0 5 .5">
      <joint name="lid"/><joint name="rail" type="slide" axis="1 0 0"/>
      <site/><geom size=".1"/><geom name="mark" size=".1"/>
    </body>
  </worldbody>
  <actuator><motor name="lid_leg" joint="lid"/></actuator>
</mujoco>"""
"""The scene. With the robots and the box, it needs the same kernels as test_frames.py, so none are compiled twice."""

BOX = """
<mujoco>
  <worldbody>
    <body name="box"><freejoint/><geom type="box" size="4 4 .1" contype="0"/><geom size=".05"/></body>
  </worldbody>
  <tendon><spatial><site site="end"/><site site="other"/></spatial></tendon>
</mujoco>""".replace("<geom size", '<site name="end"/><site name="other" pos="0 0 1"/><geom size')
"""An object whose geoms and tendon have no names."""


def make(**changes: Any) -> Env:
    """Build envs with the scene, two robots in the air, and a box below one of them."""
    robot = EntityConfig(model=SIM.model, pos=(0.0, 0.0, 5.0))
    sim = SimConfig(
        model=MODEL,
        entities={
            "a": robot,
            "b": dataclasses.replace(robot, pos=(20.0, 0.0, 5.0)),
            "box": EntityConfig(model=BOX, pos=(20.0, 0.0, 1.0)),
        },
        decimation=2,
        njmax=120,
        nconmax=40,
    )
    legs = dataclasses.replace(CONFIG.actions["legs"], actuators=("[ab]/.*_leg",), offset=0.0)
    config: EnvConfig = dataclasses.replace(CONFIG, sim=sim, actions={"legs": legs}, **changes)
    torch.manual_seed(0)
    return Env(config, NUM_ENVS, "cpu")


def owners(env: Env, kind: str) -> list[str]:
    """Return the entity of each element, which is the prefix of a name.

    The name is that of the element's body. Only a geom that has a name is assigned by its own name.
    """
    model = env.sim.model
    bodies = {"body": range(model.nbody), "geom": model.geom_bodyid, "dof": model.dof_bodyid, "site": model.site_bodyid}
    names = [model.body(int(body)).name for body in bodies[kind]]
    if kind == "geom":
        names = [model.geom(i).name or name for i, name in enumerate(names)]
    return [name.rpartition("/")[0] for name in names]


@pytest.mark.parametrize("entity", ["", "a", "b", "box"])
def test_a_randomization_of_an_entity_includes_its_elements_without_names(entity: str) -> None:
    fields = {"body_mass": "body", "geom_friction": "geom", "dof_damping": "dof", "site_pos": "site"}
    draw = RandomizationConfig(field="", entity=entity, low=0.25, high=0.75, operation="add")
    env = make(randomizations={field: dataclasses.replace(draw, field=field) for field in fields})
    for field, kind in fields.items():
        changed = float64(env.sim.field(field)) != getattr(env.sim.model, field).astype(np.float32)
        rows = np.array([owner == entity for owner in owners(env, kind)])
        assert rows.any()
        assert (changed.reshape(NUM_ENVS, len(rows), -1) == rows[:, None]).all(), field


def test_names_of_an_entity_have_no_prefix() -> None:
    draw = RandomizationConfig(field="actuator_gainprm", names=("F._leg",), columns=(0,), entity="b", low=2, high=3)
    env = make(randomizations={"gain": draw})
    gains, model = float64(env.sim.field("actuator_gainprm"))[..., 0], env.sim.model
    changed = (gains != model.actuator_gainprm[:, 0].astype(np.float32)).all(axis=0)
    assert [model.actuator(int(i)).name for i in np.flatnonzero(changed)] == ["b/FL_leg", "b/FR_leg"]


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        ({"field": "body_mass", "entity": "c"}, "entity c: is not an entity of the scene, which has a, b, box; "),
        ({"field": "gravity", "entity": "a"}, "entity a: gravity belongs to the whole env; "),
        (
            {"field": "tendon_stiffness", "entity": "box"},
            "names .*: matches none of the model's names, because there are",
        ),
    ],
)
def test_a_randomization_of_an_entity_without_such_elements_is_refused(draw: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError) as refusal:
        make(randomizations={"it": RandomizationConfig(low=0.5, high=1.5, **draw)})
    assert str(refusal.value).startswith(f"--env.randomizations.it.{problem}")


def test_a_wrench_acts_on_the_bodies_of_its_entity() -> None:
    params: dict[str, ParamValue] = {"bodies": (".*",), "force_n": (1.0, 2.0), "duration_s": (1.0, 1.0), "entity": "b"}
    wrench = EventConfig(func="mjlab_dist.mdp.events:Wrench", params=params).every(DT_S, DT_S)
    env = make(events={"wrench": wrench})
    env.step(torch.zeros(NUM_ENVS, env.num_actions))
    pushed = (env.sim.view("xfrc_applied") != 0).any(dim=2)
    assert pushed.tolist() == [[owner == "b" for owner in owners(env, "body")]] * NUM_ENVS


def test_a_scan_sees_the_geoms_of_its_entity() -> None:
    params: dict[str, ParamValue] = {"size_m": (0.2, 0.2), "offset_m": 0.0, "geoms": (".*",), "joint": "b/root"}
    scan = TermConfig(func="mjlab_dist.mdp.height_scan:HeightScan", params=params)
    scans = {
        name: dataclasses.replace(scan, params={**params, "entity": entity})
        for name, entity in (("scene", ""), ("box", "box"))
    }
    env = make(sensors=scans)
    # The robot is 5 m above the ground, and the top of the box is at 1.1 m.
    assert env.sensor("scene", HeightScan).heights.unique().tolist() == [pytest.approx(5.0)]
    assert env.sensor("box", HeightScan).heights.unique().tolist() == [pytest.approx(3.9)]


def test_each_robot_plays_the_same_file_of_motions(tmp_path: Path) -> None:
    module = "mjlab_dist.mdp.motion"
    positions = {"RR_hip": 0.1, "FL_hip": -0.2, "FR_hip": 0.3, "RL_hip": -0.4}
    frames = np.tile([0.0, 0.0, 3.0, 1.0, 0.0, 0.0, 0.0, *positions.values()], (30, 1))
    np.savez(tmp_path / "stand.npz", fps=100, joints=list(positions), stand=frames)
    params: dict[str, ParamValue] = {"file": str(tmp_path / "stand.npz"), "sites": (".._foot",)}
    env = make(
        commands={
            name: TermConfig(func=f"{module}:Motion", params={**params, "joint": f"{name}/root", "entity": name})
            for name in ("a", "b")
        },
        events={"b": EventConfig(func=f"{module}:start_in_motion", params={"command": "b"})},
    )
    for entity, expected in (("a", dict.fromkeys(positions, 0.0)), ("b", positions)):
        for name, position in expected.items():
            columns = env.joints[f"{entity}/{name}"].qpos
            assert env.sim.qpos[:, columns].flatten().tolist() == pytest.approx([position] * NUM_ENVS)
    motion = env.find_command("b")
    assert isinstance(motion, Motion)
    assert motion.joints.names == tuple(f"b/{name}" for name in sorted(positions))
    assert motion.sites.shape == (NUM_ENVS, 4, 3)
    np.testing.assert_allclose(motion.sites, motion.body_sites(env), atol=1e-5)
