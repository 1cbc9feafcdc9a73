"""Scenes that are built from a config are compared with MuJoCo's compiler and the formulas of motors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from mjlab_dist.config import ActuatorConfig, EntityConfig, OptionsConfig, SimConfig
from mjlab_dist.errors import UserError
from mjlab_dist.sim import build_model, load_model
from mjlab_dist.sim.scene import ignored_options

ARM = """
<mujoco>
  <option timestep="0.004" solver="PGS"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="upper" pos="0 0 1">
      <joint name="shoulder" axis="0 1 0" armature=".01"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/>
      <body name="lower" pos=".3 0 0">
        <joint name="elbow" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass=".5"/>
        <body name="tool" pos=".3 0 0">
          <joint name="ball" type="ball"/>
          <geom size=".02" mass=".1"/>
        </body>
        <body name="finger" pos=".3 0 .05">
          <joint name="grip" type="slide"/>
          <geom size=".02" mass=".1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="old_elbow" joint="elbow" gear="3"/>
    <motor name="grip_motor" joint="grip"/>
    <motor name="old_shoulder" jointinparent="shoulder"/>
  </actuator>
  <keyframe><key name="home" qpos=".1 .2 1 0 0 0 .3" ctrl="1 2 3"/></keyframe>
</mujoco>"""

CUBE = """
<mujoco>
  <worldbody>
    <body name="cube">
      <freejoint name="root"/>
      <geom name="box" type="box" size=".02 .02 .02" mass=".1"/>
    </body>
  </worldbody>
  <keyframe><key name="lying" qpos="0 0 .02 1 0 0 0"/></keyframe>
</mujoco>"""

NEWTON = OptionsConfig(solver="newton")

MOTORS = ActuatorConfig(joints=("shoulder", "elb.*"), stiffness=20.0, damping=0.5)


def motors(**changes: Any) -> dict[str, ActuatorConfig]:
    return {"arm": dataclasses.replace(MOTORS, **changes)}


def scene(**changes: Any) -> SimConfig:
    return dataclasses.replace(SimConfig(model=ARM, njmax=8, nconmax=4, options=NEWTON), **changes)


def names(model: mujoco.MjModel, kind: str) -> list[str]:
    count = {"body": model.nbody, "joint": model.njnt, "actuator": model.nu, "key": model.nkey}[kind]
    return [getattr(model, kind)(i).name for i in range(count)]


def refused(config: SimConfig) -> str:
    with pytest.raises(UserError) as caught:
        build_model(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Location of the MJCF


def make_spec() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(CUBE)


def make_nothing() -> None:
    pass


def make_trouble() -> mujoco.MjSpec:
    raise RuntimeError("no luck\ntoday")


def test_an_mjcf_is_a_file_a_string_or_the_result_of_a_function(tmp_path: Path) -> None:
    file = tmp_path / "cube.xml"
    file.write_text(CUBE)
    for model in (str(file), CUBE, f"{__name__}:make_spec"):
        assert load_model(model).geom("box").size.tolist() == [0.02, 0.02, 0.02]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (f"{__name__}:make_nothing", "NoneType"),
        (f"{__name__}:make_trouble", "no luck today"),
        (f"{__name__}:make_none_such", "make_none_such"),
        ("no.such.package:make", "'no'"),
        ("<mujoco>\n<wheel/></mujoco>", "wheel"),
        ("<mujoco><worldbody><body><freejoint/></body></worldbody></mujoco>", "mass"),
        (
            '<mujoco><worldbody><body pos="0 nan 0"><geom size="1"/></body></worldbody></mujoco>',
            "body 1: pos is 0 nan 0",
        ),
    ],
)
def test_an_invalid_mjcf_is_refused_by_its_flag(model: str, says: str) -> None:
    message = refused(scene(model=model))
    assert message.startswith("--env.sim.model ")
    assert says in message.partition(": ")[2]
    message = refused(scene(entities={"it": EntityConfig(model=model)}))
    assert message.startswith("--env.sim.entities.it.model ")
    assert says in message.partition(": ")[2]


# Entities


def test_entities_have_their_configured_positions_and_names() -> None:
    turned = (0.5, 0.5, 0.5, 0.5)  # rotates x to y, y to z, and z to x
    model = build_model(
        scene(
            entities={
                "a": EntityConfig(model=CUBE, pos=(1.0, 0.0, 0.0)),
                "b": EntityConfig(model=CUBE, pos=(0.0, 2.0, 0.0), quat=turned),
                "arm": EntityConfig(model=ARM, pos=(0.0, 0.0, 1.0), quat=turned),
            }
        )
    )
    assert names(model, "body")[5:7] == ["a/cube", "b/cube"]
    assert model.nu == 6
    assert "arm/grip_motor" in names(model, "actuator")
    assert {"a/root", "b/root", "arm/elbow"} <= set(names(model, "joint"))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert data.body("a/cube").xpos.tolist() == [1.0, 0.0, 0.0]
    assert data.body("b/cube").xpos.tolist() == [0.0, 2.0, 0.0]
    assert data.body("b/cube").xquat == pytest.approx(turned)
    assert data.body("arm/lower").xpos == pytest.approx([1.0, 0.3, 1.0])  # (.3, 0, 1) in the entity's own MJCF


def test_options_of_entities_that_do_not_apply_are_named() -> None:
    flags = '<option timestep="0.004" impratio="10" wind="1 0 0"><flag gravity="disable" energy="enable"/></option>'
    cube = CUBE.replace("<mujoco>", f"<mujoco>{flags}")
    config = scene(entities={"a": EntityConfig(model=cube), "b": EntityConfig(model=CUBE)})
    model = build_model(config)
    assert (model.opt.timestep, model.opt.impratio, model.opt.disableflags) == (0.004, 1.0, 0)
    (line,) = ignored_options(config)  # timestep has the scene's value
    assert line.startswith("--env.sim.entities.a.model ")
    assert " flag, impratio and wind; " in line
    own = dataclasses.replace(NEWTON, impratio=10.0)
    (line,) = ignored_options(dataclasses.replace(config, options=own))
    assert " flag and wind; " in line


def test_keyframes_cover_all_entities() -> None:
    model = build_model(scene(entities={"cube": EntityConfig(model=CUBE, pos=(1.0, 0.0, 0.5))}))
    assert names(model, "key") == ["home", "cube/lying"]
    assert model.key("home").qpos.tolist() == [0.1, 0.2, 1, 0, 0, 0, 0.3, 1, 0, 0.5, 1, 0, 0, 0]
    assert model.key("home").ctrl.tolist() == [1, 2, 3]


def test_entities_do_not_change_the_rest_of_a_scene() -> None:
    alone, more = build_model(scene()), build_model(scene(entities={"cube": EntityConfig(model=CUBE)}))
    assert np.array_equal(more.body_mass[:5], alone.body_mass)
    assert np.array_equal(more.body_inertia[:5], alone.body_inertia)
    assert np.array_equal(more.jnt_axis[:4], alone.jnt_axis)


def test_an_entity_loads_meshes_next_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "wedge.obj").write_text(
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    )
    file = tmp_path / "wedge.xml"
    file.write_text("""
        <mujoco>
          <compiler meshdir="shapes"/>
          <asset><mesh name="wedge" file="wedge.obj"/></asset>
          <worldbody><body><freejoint/><geom type="mesh" mesh="wedge"/></body></worldbody>
        </mujoco>""")
    model = build_model(scene(entities={"one": EntityConfig(model=str(file)), "two": EntityConfig(model=str(file))}))
    assert model.body_mass[-1] == pytest.approx(1000 / 6)  # a tetrahedron with the density of water


# Motors


def test_motors_replace_only_the_actuators_of_their_joints() -> None:
    model = build_model(scene(actuators={"arm": MOTORS}))
    assert names(model, "actuator") == ["grip_motor", "shoulder", "elbow"]
    assert model.actuator_trnid[:, 0].tolist() == [model.joint(name).id for name in ("grip", "shoulder", "elbow")]
    # Remaining actuators keep their inputs in the keyframe, and position motors hold the keyframe's pose.
    assert model.key("home").ctrl.tolist() == [2, 0.1, 0.2]
    untouched = load_model(ARM)
    assert np.array_equal(model.dof_armature, untouched.dof_armature)
    assert np.array_equal(model.dof_frictionloss, untouched.dof_frictionloss)


def test_joints_are_in_the_order_of_their_patterns_and_of_the_model() -> None:
    model = build_model(scene(actuators=motors(joints=("grip", "elbow", ".*"))))
    assert names(model, "actuator") == ["grip", "elbow", "shoulder"]


def test_a_motor_adds_its_armature_and_friction() -> None:
    model = build_model(scene(actuators=motors(armature=0.03, frictionloss=0.2)))
    assert model.dof_armature.tolist() == [0.03, 0.03, 0, 0, 0, 0]
    assert model.dof_frictionloss.tolist() == [0.2, 0.2, 0, 0, 0, 0]


@pytest.mark.parametrize("limits", [(None, None), (4.0, None), (4.0, 6.0)], ids=["free", "torque", "torque and speed"])
@pytest.mark.parametrize("kind", ["position", "velocity", "effort"])
def test_a_motor_applies_the_requested_torque_within_its_limits(kind: Any, limits: tuple[float | None, float | None]):
    stall, speed = limits
    stiffness, damping = {"position": (20.0, 0.5), "velocity": (0.0, 0.5), "effort": (0.0, 0.0)}[kind]
    gains = {"stiffness": stiffness, "damping": damping, "effort_limit": stall, "velocity_limit": speed}
    model = build_model(scene(actuators=motors(joints=("shoulder",), kind=kind, **gains)))
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    at_limits = 0
    for _ in range(300):
        data.qpos[0], data.qvel[0], data.ctrl[-1] = rng.normal(), rng.normal(scale=6), rng.normal(scale=6)
        mujoco.mj_forward(model, data)
        torque = {
            "position": stiffness * (data.ctrl[-1] - data.qpos[0]) - damping * data.qvel[0],
            "velocity": damping * (data.ctrl[-1] - data.qvel[0]),
            "effort": data.ctrl[-1],
        }[kind]
        limited = torque
        if stall is not None and speed is not None:
            limited = np.clip(limited, stall * (-1 - data.qvel[0] / speed), stall * (1 - data.qvel[0] / speed))
        if stall is not None:
            limited = np.clip(limited, -stall, stall)
        at_limits += limited != torque
        assert data.actuator_force[-1] == pytest.approx(limited, abs=1e-9)
        assert data.qfrc_actuator[0] == pytest.approx(limited, abs=1e-9)
    assert (at_limits > 30) == (stall is not None)


def test_motors_are_put_on_joints_of_entities() -> None:
    model = build_model(scene(entities={"left": EntityConfig(model=ARM)}, actuators=motors(joints=("left/.*",))))
    old = ["old_elbow", "grip_motor", "old_shoulder"]
    assert names(model, "actuator") == [*old, "left/shoulder", "left/elbow", "left/grip"]


# Options


def test_options_are_set_and_others_stay_unchanged() -> None:
    given = OptionsConfig(
        timestep_s=0.001,
        integrator="implicitfast",
        cone="elliptic",
        solver="cg",
        iterations=7,
        ls_iterations=9,
        impratio=10.0,
        tolerance=1e-5,
    )
    option = build_model(scene(options=given)).opt
    assert (option.timestep, option.impratio, option.tolerance) == (0.001, 10.0, 1e-5)
    assert (option.iterations, option.ls_iterations) == (7, 9)
    assert option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert option.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    assert option.solver == mujoco.mjtSolver.mjSOL_CG
    kept = build_model(scene()).opt
    assert kept.timestep == 0.004
    assert kept.solver == mujoco.mjtSolver.mjSOL_NEWTON


# Mistakes

TWICE = {"arm": MOTORS, "more": dataclasses.replace(MOTORS, joints=("elbow",))}


@pytest.mark.parametrize(
    ("changes", "flag", "says"),
    [
        ({"actuators": motors(joints=("knee",))}, "actuators.arm.joints knee: ", "shoulder, elbow, grip"),
        ({"actuators": motors(joints=("ball",))}, "actuators.arm.joints ball: ", "shoulder, elbow, grip"),
        ({"actuators": motors(joints=("(",))}, "actuators.arm.joints (: ", "position 0"),
        ({"actuators": motors(stiffness=-1.0)}, "actuators.arm.stiffness -1.0: ", "0"),
        ({"actuators": motors(effort_limit=0.0)}, "actuators.arm.effort-limit 0.0: ", ""),
        ({"actuators": motors(velocity_limit=3.0)}, "actuators.arm.velocity-limit 3.0: ", "effort-limit"),
        ({"actuators": motors(kind="velocity")}, "actuators.arm.stiffness 20.0: ", "position"),
        ({"actuators": motors(kind="effort", stiffness=0.0)}, "actuators.arm.damping 0.5: ", "effort"),
        ({"actuators": TWICE}, "actuators.more.joints elbow: ", "elbow "),
        (
            {"model": ARM.replace("old_shoulder", "elbow"), "actuators": motors(joints=("elbow",))},
            "model ",
            "repeated name 'elbow' in actuator",
        ),
        ({"entities": {"cube": EntityConfig(model=CUBE, quat=(0.0, 0.0, 0.0, 0.0))}}, "entities.cube.quat ", ""),
        ({"options": dataclasses.replace(NEWTON, timestep_s=0.0)}, "options.timestep-s 0.0: ", ""),
        ({"options": dataclasses.replace(NEWTON, iterations=0)}, "options.iterations 0: ", ""),
        ({"options": dataclasses.replace(NEWTON, impratio=0.0)}, "options.impratio 0.0: ", ""),
        ({"options": OptionsConfig()}, "options.solver", "PGS"),
    ],
)
def test_mistakes_are_refused_by_their_flag(changes: dict[str, Any], flag: str, says: str) -> None:
    message = refused(scene(**changes))
    assert message.startswith(f"--env.sim.{flag}")
    assert says in message.removeprefix(f"--env.sim.{flag}")
