"""Contact sensors that a config declares are compared with sums of contact forces in MuJoCo's C library."""

from __future__ import annotations

import dataclasses
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from legged import CONFIG, FEET, SIM, assert_resumes, c_copies, end_episodes, make, refused, swinging_legs, term

from mjlab_dist.config import ContactConfig, EntityConfig, EnvConfig, SimConfig
from mjlab_dist.env import Env
from mjlab_dist.mdp.sensors import Contact

PRESS = """
<mujoco>
  <worldbody>
    <body name="base">
      <joint name="lift" type="slide" axis="0 0 1" damping="1"/>
      <geom name="base" type="box" size=".1 .1 .02" mass=".5"/>
      <body name="left" pos="-.06 0 .06">
        <joint name="left" type="slide" axis="1 0 0" range="-.05 .05" damping="1"/>
        <geom name="left" type="sphere" size=".03" mass=".1"/>
        <geom name="left_tip" type="sphere" size=".02" pos="0 0 .04" mass=".05"/>
      </body>
      <body name="right" pos=".06 0 .06">
        <joint name="right" type="slide" axis="1 0 0" range="-.05 .05" damping="1"/>
        <geom name="right" type="sphere" size=".03" mass=".1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <position name="left" joint="left" kp="50"/>
    <position name="right" joint="right" kp="50"/>
  </actuator>
</mujoco>"""
"""A robot: a plate with two fingers, which press on objects between them and above them."""

FLOOR = '<mujoco><worldbody><geom name="floor" type="plane" size="5 5 .1"/></worldbody></mujoco>'

BALL = """
<mujoco>
  <worldbody>
    <body name="ball"><freejoint/><geom name="ball" size=".04" mass=".3"/></body>
  </worldbody>
</mujoco>"""

CONTACTS = {
    "all": ContactConfig(kind="subtree", names=(".*/base", "ball/ball")),
    "fingers": ContactConfig(names=("left", "right"), entity="one"),
    "tips": ContactConfig(kind="geom", names=(".*tip", "right"), entity="one", other_names=("two/base", "ball/ball")),
    "on_floor": ContactConfig(names=(".*",), entity="one", other_names=("floor",), other_kind="geom", other_entity=""),
    "robots": ContactConfig(
        kind="subtree", names=("base",), entity="two", other_names=("base",), other_kind="subtree", other_entity="one"
    ),
    "strongest": ContactConfig(
        kind="subtree", names=(".*/base",), other_names=("world", "ball/ball"), reduce="maxforce"
    ),
}

NUM_ENVS = 6


def scene(**changes: Any) -> EnvConfig:
    """Return a config with two copies of the robot, one above the other, and a ball between them."""
    sim = SimConfig(
        model=FLOOR,
        entities={
            "one": EntityConfig(model=PRESS, pos=(0.0, 0.0, 0.019)),
            "two": EntityConfig(model=PRESS, pos=(0.0, 0.0, 0.3)),
            "ball": EntityConfig(model=BALL, pos=(0.0, 0.0, 0.2)),
        },
        contacts=CONTACTS,
        njmax=120,
        nconmax=30,
        forward_before_observation=False,
    )
    sensors = {name: term("sensors:Contact", contacts=name, history=3) for name in CONTACTS}
    actions = {"fingers": dataclasses.replace(CONFIG.actions["legs"], actuators=("one/.*", "two/.*"), offset=0.0)}
    return dataclasses.replace(
        CONFIG, sim=dataclasses.replace(sim, **changes), sensors=sensors, actions=actions, episode_length_s=50.0
    )


def bodies_below(model: mujoco.MjModel, root: str) -> set[int]:
    """Return the ids of a body and its descendants."""
    found = {model.body(root).id}
    for body in range(model.nbody):
        if model.body_parentid[body] in found:
            found.add(body)
    return found


def geoms_of(model: mujoco.MjModel, kind: str, name: str) -> set[int]:
    """Return the ids of an element's geoms."""
    if kind == "geom":
        return {model.geom(name).id}
    bodies = {model.body(name).id} if kind == "body" else bodies_below(model, name)
    return {i for i in range(model.ngeom) if model.geom_bodyid[i] in bodies}


def net_force(model: mujoco.MjModel, data: mujoco.MjData, mine: set[int], theirs: set[int] | None) -> np.ndarray:
    """Return the number of contacts of geoms `mine` with `theirs`, and the force on `theirs` in the world frame."""
    total, count = np.zeros(3), 0
    for i, contact in enumerate(data.contact):
        one, two = contact.geom
        for first, second, sign in ((one, two, 1.0), (two, one, -1.0)):
            if first in mine and (theirs is None or second in theirs):
                wrench = np.zeros(6)
                mujoco.mj_contactForce(model, data, i, wrench)
                total += sign * contact.frame.reshape(3, 3).T @ wrench[:3]
                count += 1
                break
    return np.array([count, *total])


ROWS: dict[str, list[tuple[str, str, list[tuple[str, str]]]]] = {
    "all": [("subtree", "one/base", []), ("subtree", "two/base", []), ("subtree", "ball/ball", [])],
    "fingers": [("body", "one/left", []), ("body", "one/right", [])],
    "tips": [("geom", f"one/{name}", [("body", "two/base"), ("body", "ball/ball")]) for name in ("left_tip", "right")],
    "on_floor": [("body", f"one/{name}", [("geom", "floor")]) for name in ("base", "left", "right")],
    "robots": [("subtree", "two/base", [("subtree", "one/base")])],
}
"""For each entry of CONTACTS, an explicit list of its elements and of the elements that they may touch."""


@pytest.mark.slow
def test_declared_contacts_equal_the_forces_of_mujocos_contacts() -> None:
    torch.manual_seed(0)
    env = Env(scene(), NUM_ENVS, "cpu")
    model = env.sim.model
    touched = {name: np.zeros(len(rows)) for name, rows in ROWS.items()}
    for name, rows in ROWS.items():
        assert env.sensor(name, Contact).names == tuple(row[1] for row in rows)
    for _ in range(200):
        copies = c_copies(env)
        env.step(2.0 * torch.randn(NUM_ENVS, 4))
        for data, ctrl in zip(copies, env.sim.ctrl.double().numpy(), strict=True):
            data.ctrl = ctrl
            mujoco.mj_forward(model, data)  # computes contacts at the start of the only substep, as sensors do
        for name, rows in ROWS.items():
            sensor = env.sensor(name, Contact)
            for i, (kind, element, others) in enumerate(rows):
                theirs = set[int]().union(*(geoms_of(model, *other) for other in others)) if others else None
                mine = geoms_of(model, kind, element)
                expected = np.array([net_force(model, data, mine, theirs) for data in copies])
                np.testing.assert_array_equal(sensor.in_contact[:, i], expected[:, 0] > 0)
                np.testing.assert_allclose(sensor.force_n[:, i], expected[:, 1:], rtol=2e-2, atol=5e-2)
                touched[name][i] += (expected[:, 0] > 0).sum()
    assert touched["all"].min() > 100
    assert touched["tips"].min() > 50
    assert touched["robots"].min() > 50


def test_the_strongest_of_several_sensors_counts_with_maxforce() -> None:
    torch.manual_seed(0)
    env = Env(scene(), NUM_ENVS, "cpu")
    sensor = env.sensor("strongest", Contact)
    names = [f"strongest:one/base:{other}" for other in ("world", "ball/ball")]
    num_both = 0
    for _ in range(60):
        env.step(2.0 * torch.randn(NUM_ENVS, 4))
        read = torch.stack([env.sim.sensor(name) for name in names])
        num_both += int((read[..., 0] > 0).all(dim=0).sum())
        strongest = read[..., 1:].norm(dim=2).max(dim=0).values
        torch.testing.assert_close(sensor.force_n[:, 0].norm(dim=1), strongest)
        torch.testing.assert_close(sensor.in_contact[:, 0], (read[..., 0] > 0).any(dim=0))
    assert num_both > 20


DECLARED = dataclasses.replace(SIM, contacts={"feet": ContactConfig(kind="geom", names=(".._foot",))})
BOTH = {
    "declared": term("sensors:Contact", contacts="feet", history=2),
    "mjcf": term("sensors:Contact", sensors=(".._touch",)),
}


def test_declared_contacts_equal_those_of_the_mjcf_bit_for_bit() -> None:
    env = make(8, sim=DECLARED, sensors=BOTH)
    mine, theirs = env.sensor("declared", Contact), env.sensor("mjcf", Contact)
    assert mine.names == tuple(f"{foot}_foot" for foot in FEET)
    for now in range(150):
        env.step(swinging_legs(now, 8))
        for name, tensor in theirs.state().items():
            assert torch.equal(mine.state()[name], tensor)
    assert mine.last_contact_time_s.count_nonzero() > 16


def test_declared_contacts_do_not_change_the_motion() -> None:
    with_them, without = make(8, sim=DECLARED, sensors=BOTH), make(8, sensors={"mjcf": BOTH["mjcf"]})
    for now in range(50):
        for env in (with_them, without):
            env.step(swinging_legs(now, 8))
        assert torch.equal(with_them.sim.qpos, without.sim.qpos)


def test_durations_and_the_history_of_forces() -> None:
    env = make(8, sim=DECLARED, sensors=BOTH, episode_length_s=100.0)
    feet = env.sensor("declared", Contact)
    contact, last_contact = np.zeros((8, 4)), np.zeros((8, 4))
    forces = [torch.zeros(8, 4, 3), torch.zeros(8, 4, 3)]
    rng = np.random.default_rng(0)
    for now in range(200):
        ends = torch.from_numpy(rng.random(8) < 0.03)
        end_episodes(env, ends)
        env.step(swinging_legs(now, 8))
        # If an episode ends, the env's next episode starts without contacts. In the other envs, times continue.
        touch = feet.in_contact.numpy()
        landed = contact + env.step_dt_s
        last_contact = np.where(~touch & (contact > 0), landed, last_contact)
        contact = np.where(touch, landed, 0.0)
        last_contact[ends] = 0
        np.testing.assert_allclose(feet.contact_time_s, contact, rtol=0, atol=1e-5)
        np.testing.assert_allclose(feet.last_contact_time_s, last_contact, rtol=0, atol=1e-5)
        forces = [feet.force_n.clone(), forces[0].clone()]
        forces[1][ends] = 0
        assert torch.equal(feet.force_history_n, torch.stack(forces, dim=1))
    assert last_contact.max() > 0.05


def test_a_saved_state_continues_exactly() -> None:
    env = assert_resumes(lambda seed: make(8, seed, sim=DECLARED, sensors=BOTH, episode_length_s=100.0), 60, 60)
    state = env.state()
    assert state["sensors.declared.last_contact_time_s"].any()
    assert state["sensors.declared.force_history_n"].any()


# Wrong contacts and sensors are refused


@pytest.mark.parametrize(
    ("fields", "starts"),
    [
        ({"names": ("hand",)}, "names hand: matches none of the model's names: world, trunk, FL"),
        ({"entity": "dog"}, "entity dog: is not an entity of the scene, which has no"),
        ({"other_names": ("x",)}, "other-names x: matches none"),
        ({"other_names": ("x",), "other_entity": "y"}, "other-entity y: is not an entity of the scene"),
        ({"other_entity": ""}, "other-entity : needs other-names; set both, or drop it"),
    ],
)
def test_contacts_of_unknown_elements_are_refused(fields: dict[str, Any], starts: str) -> None:
    contacts = {"feet": ContactConfig(**{"names": (".*",), **fields})}
    message = refused(sim=dataclasses.replace(SIM, contacts=contacts))
    assert message.startswith(f"--env.sim.contacts.feet.{starts}")


def test_a_name_that_no_sensor_can_have_is_refused() -> None:
    sim = dataclasses.replace(SIM, contacts={"a:b": ContactConfig(names=(".*",))})
    assert refused(sim=sim).startswith("--env.sim.contacts.a:b: ")


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"contacts": "hands"}, "sim.contacts hands: does not exist; the task has feet"),
        ({}, "contact sensors: the list is empty"),
        ({"sensors": (".._touch",), "contacts": "feet"}, "give one of the two"),
        ({"sensors": (".._touch",), "history": -1}, "history -1"),
    ],
)
def test_a_sensor_without_contacts_is_refused(params: dict[str, Any], says: str) -> None:
    message = refused(sim=DECLARED, sensors={"it": term("sensors:Contact", **params)})
    assert message.startswith("env.sensors.it: ")
    assert says in message
