"""Motors that new-task adds are compared with formulas and MuJoCo's C code."""

from __future__ import annotations

import math
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mjlab_dist.authoring.new_task.action_blocks import action_inputs, find_blocks
from mjlab_dist.authoring.new_task.joints import driven_joints, find_legs, find_root, simple_joints
from mjlab_dist.authoring.new_task.motor_sizing import joint_loads
from mjlab_dist.authoring.new_task.sampling import calmed, sample_sizes
from mjlab_dist.authoring.new_task.settling import Actuation, actuate, add_motors, start_state

GRAVITY = 9.81


def pendulum(axis: str, joint: str = "", mass: float = 2.0, length: float = 0.5) -> str:
    """Return the MJCF of a point mass on a rod along x."""
    return f"""
    <mujoco><compiler autolimits="true"/><option timestep="0.002"/>
      <worldbody><body><joint name="hinge" axis="{axis}" {joint}/>
        <inertial pos="{length} 0 0" mass="{mass}" diaginertia="1e-9 1e-9 1e-9"/>
      </body></worldbody>
    </mujoco>"""


def actuated(xml: str) -> tuple[mujoco.MjModel, Actuation]:
    """Return the model with added motors, and these motors."""
    spec = mujoco.MjSpec.from_string(xml)
    model = spec.compile()
    root = find_root(model)
    found = actuate(spec, root, driven_joints(model, root), None)
    if found.home:
        spec.add_key(name="home", qpos=found.home)
    add_motors(spec, found.motors)
    return spec.compile(), found


def test_the_stiffness_follows_from_the_deflection_under_the_load() -> None:
    (motor,) = actuated(pendulum("0 1 0"))[1].motors.values()
    load, inertia = 2.0 * GRAVITY * 0.5, 2.0 * 0.5**2
    assert motor.stiffness == pytest.approx(load / 0.1, rel=0.05)
    assert motor.effort_limit == pytest.approx(2.0 * load, rel=0.05)
    assert motor.damping == pytest.approx(2.0 * math.sqrt(load / 0.1 * inertia), rel=0.05)
    assert motor.armature is None


def test_without_load_the_stiffness_follows_from_the_inertia() -> None:
    (motor,) = actuated(pendulum("0 0 1"))[1].motors.values()
    stiffness = 2.0 * 0.5**2 * (2.0 * math.pi * 2.0) ** 2
    assert motor.stiffness == pytest.approx(stiffness, rel=0.05)
    assert motor.effort_limit == pytest.approx(2.0 * 0.1 * stiffness, rel=0.05)


def test_the_limit_the_damping_and_the_armature_of_the_file_are_used() -> None:
    joint = 'actuatorfrcrange="-30 30" armature="0.1" damping="3"'
    (motor,) = actuated(pendulum("0 1 0", joint))[1].motors.values()
    stiffness = 30.0 / 2.0 / 0.1
    assert motor.effort_limit == 30.0
    assert motor.stiffness == pytest.approx(stiffness, rel=0.05)
    assert motor.damping == pytest.approx(2.0 * math.sqrt(stiffness * (0.5 + 0.1)) - 3.0, rel=0.05)
    assert motor.armature is None, "the joint keeps the armature of the file"


def test_armature_is_added_where_the_inertia_is_too_small_for_the_stiffness() -> None:
    (motor,) = actuated(pendulum("0 1 0", mass=1.0, length=0.002))[1].motors.values()
    assert motor.armature is not None
    frequency = math.sqrt(motor.stiffness / (1.0 * 0.002**2 + motor.armature)) / (2.0 * math.pi)
    assert frequency == pytest.approx(10.0, rel=0.05)


QUADRUPED = (Path(__file__).parents[3] / "data" / "models" / "quadruped.xml").read_text()


def test_a_quadruped_of_12_kg_stands_on_bent_legs_with_motors_of_the_usual_size() -> None:
    model, found = actuated(QUADRUPED)
    assert found.stands
    limits = [motor.effort_limit or 0.0 for motor in found.motors.values()]
    assert 15 < min(limits) <= max(limits) < 40
    assert 24 <= max(limits) <= 36
    # In MuJoCo's C code, the robot holds the pose.
    data = start_state(model, 0)
    feet = [model.geom(i).id for i in range(model.ngeom) if model.geom_size[i, 0] == 0.02 and model.geom_contype[i]]
    hips = [data.xanchor[model.joint(f"{name}_hip").id] for name in ("fl", "fr", "rl", "rr")]
    assert len(feet) == 4
    for hip, foot in zip(hips, feet, strict=True):
        assert np.abs(data.geom_xpos[foot, :2] - hip[:2]).max() < 0.06, "each foot is below its hip"
        assert 0.2 < hip[2] - data.geom_xpos[foot, 2] < 0.38, "each leg is bent"
    data.ctrl[:] = action_inputs(model, data.qpos, found.blocks).offsets
    start = data.qpos.copy()
    while data.time < 5:
        mujoco.mj_step(model, data)
    assert data.xmat[1, 8] > 0.99
    assert np.abs(data.qpos[7:] - start[7:]).max() < 0.3
    assert np.abs(data.qvel).max() < 0.1


LINKS = {"0 1 0": 1.5, "1 0 0": 1.2, "0 0 1": 0.8}, {"0 1 0": 0.6, "1 0 0": 0.1}, {"0 1 0": 0.05, "0 0 1": 0.01}

HUMANOID_ARM = "".join(
    f'<body pos=".1 0 0"><joint name="j{i}" axis="{axis}" range="-2 2"/>'
    f'<geom type="capsule" fromto="0 0 0 .1 0 0" size=".03" mass="{mass}"/>'
    for i, (axis, mass) in enumerate(link for part in LINKS for link in part.items())
)


@pytest.mark.parametrize("timestep", [0.001, 0.005, 0.01])
def test_light_wrists_are_stable_under_random_actions(timestep: float) -> None:
    xml = f"""
    <mujoco><compiler angle="radian" autolimits="true"/><option timestep="{timestep}"/>
      <worldbody><body pos="0 0 1"><freejoint/><geom type="box" size=".1 .1 .2" mass="10"/>
        {HUMANOID_ARM}{"</body>" * 7}
      </body></worldbody>
    </mujoco>"""
    model, found = actuated(xml)
    inputs = action_inputs(model, model.qpos0, found.blocks)
    rng = np.random.default_rng(0)
    data = mujoco.MjData(model)
    for step in range(round(5 / timestep)):
        if step % max(1, round(0.02 / timestep)) == 0:
            data.ctrl[:] = inputs.of(rng.normal(size=model.nu))
        mujoco.mj_step(model, data)
        assert np.abs(data.qvel[6:]).max() < 100.0
    assert not any(warning.number for warning in data.warning)


def test_added_motors_never_drive_the_joints_of_the_root() -> None:
    xml = """
    <mujoco><compiler autolimits="true"/>
      <worldbody><geom type="plane" size="0 0 1" pos="0 0 -.6"/>
        <body><joint name="x" type="slide" axis="1 0 0"/><joint name="z" type="slide" axis="0 0 1"/>
          <joint name="pitch" axis="0 1 0"/><geom type="box" size=".3 .1 .1" mass="5"/>
          <body pos="0 0 -.1"><joint name="hip" axis="0 1 0" range="-60 60"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03" mass="1"/>
            <body pos="0 0 -.2"><joint name="knee" axis="0 1 0" range="-120 0"/>
              <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".03" mass="1"/>
            </body>
          </body>
        </body>
      </worldbody>
    </mujoco>"""
    model, _ = actuated(xml)
    assert [model.actuator(i).name for i in range(model.nu)] == ["hip", "knee"]


def test_joints_that_follow_another_one_get_no_motor() -> None:
    fingers = "".join(
        f'<body pos="0 {y} .1"><joint name="{name}" type="slide" axis="0 {axis} 0" range="0 .04"/>'
        '<geom type="box" size=".01 .01 .02" mass=".05"/></body>'
        for name, y, axis in (("left", 0.01, 1), ("right", -0.01, -1))
    )
    xml = f"""
    <mujoco><compiler autolimits="true"/>
      <worldbody>
        <body pos="0 0 1"><joint name="turn" axis="0 0 1"/><geom size=".05" mass="1"/>{fingers}</body>
      </worldbody>
      <equality><joint joint1="right" joint2="left"/></equality>
    </mujoco>"""
    model, found = actuated(xml)
    assert {model.actuator(i).name for i in range(model.nu)} == {"turn", "left"}
    (finger,) = [block for block in found.blocks.values() if "left" in block.actuators]
    assert (finger.scale, finger.offset) == (0.02, 0.02), "actions -1 and 1 are the ends of the joint's range"


ACTUATED = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <worldbody>
    <body><joint name="a" axis="0 1 0" range="-2 2" ref="0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
      <site name="s" pos=".1 0 .05"/>
      <body pos=".3 0 0"><joint name="b" axis="0 1 0" range="-2 2"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/><site name="t" pos=".1 0 .05"/>
      </body>
    </body>
  </worldbody>
  <tendon>
    <fixed name="both"><joint joint="a" coef=".5"/><joint joint="b" coef=".5"/></fixed>
    <spatial name="string"><site site="s"/><site site="t"/></spatial>
  </tendon>
  <actuator>%s</actuator>
  <keyframe><key name="home" qpos=".4 -.2"/></keyframe>
</mujoco>"""


@pytest.mark.parametrize(
    ("actuators", "kind", "scale", "offset"),
    [
        ('<position name="it" joint="a" kp="10"/>', "position", 0.5, "home"),
        ('<position name="it" joint="a" kp="10" gear="2"/>', "position", 1.0, 0.8),
        ('<position name="it" tendon="both" kp="10" ctrlrange="-1 2"/>', "position", 1.5, 0.5),
        (
            '<general name="it" joint="a" gainprm=".3" biastype="affine" biasprm="0 -100 -10" ctrlrange="0 700"/>',
            "position", 170.0, 130.0,
        ),
        ('<velocity name="it" joint="a" kv="2" ctrlrange="-3 3"/>', "velocity", 3.0, 0.0),
        ('<intvelocity name="it" joint="a" kp="20" ctrlrange="-3 3" actrange="-2 2"/>', "velocity", 3.0, 0.0),
        ('<motor name="it" joint="a" ctrlrange="-1 1" gear="5"/>', "effort", 1.0, 0.0),
        ('<motor name="it" tendon="string" ctrlrange="0 8"/>', "effort", 4.0, 4.0),
        ('<muscle name="it" tendon="string" ctrlrange="0 1" lengthrange=".1 .5"/>', "muscle", 0.5, 0.5),
    ],
)  # fmt: skip
def test_actuators_of_the_file_are_driven_around_the_start_state(
    actuators: str, kind: str, scale: float, offset: float | str
) -> None:
    model = mujoco.MjModel.from_xml_string(ACTUATED % actuators)
    data = start_state(model, 0)
    (block,) = find_blocks(model, data, dict.fromkeys(simple_joints(model), 5.0)).values()
    assert (block.kind, block.scale, block.offset) == (kind, scale, offset)


def test_the_input_at_action_0_holds_the_start_state() -> None:
    gears = "".join(
        f'<general name="{joint}" joint="{joint}" gear="{gear}" gainprm="7" biastype="affine" biasprm="3 -40 -1"/>'
        for joint, gear in (("a", 3.0), ("b", -2.0))
    )
    model = mujoco.MjModel.from_xml_string(ACTUATED % gears)
    data = start_state(model, 0)
    blocks = find_blocks(model, data, joint_loads(model, data, simple_joints(model), []))
    data.ctrl[:] = action_inputs(model, data.qpos, blocks).offsets
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.actuator_force, 0.0, atol=0.02 * 40)  # new-task rounds numbers to two digits


def test_the_damper_of_a_position_motor_is_not_driven() -> None:
    both = '<position name="p" joint="a" kp="10"/><velocity name="d" joint="a" kv="1"/><motor name="m" joint="b"/>'
    model = mujoco.MjModel.from_xml_string(ACTUATED % both)
    blocks = find_blocks(model, start_state(model, 0), {0: 1.0, 1: 4.0})
    assert {block.actuators for block in blocks.values()} == {("p",), ("m",)}
    assert blocks["effort"].scale == 8.0, "without a limit, the scale is twice the load"


TORQUES = """
<mujoco><option timestep=".002"/>
  <worldbody><body><joint name="shoulder" axis="0 1 0" damping=".1"/>
    <inertial pos=".3 0 0" mass="5" diaginertia=".1 .1 .1"/>
    <body pos=".6 0 0"><joint name="wrist" axis="1 0 0" damping=".01"/>
      <inertial pos=".05 0 .001" mass=".5" diaginertia="3e-4 6e-4 6e-4"/>
    </body>
  </body></worldbody>
  <actuator>
    <motor name="shoulder" joint="shoulder" ctrlrange="-40 40"/>
    <motor name="wrist" joint="wrist" ctrlrange="-13 13"/>
  </actuator>
</mujoco>"""


def test_torques_on_a_light_link_are_limited_so_that_it_is_stable() -> None:
    model = mujoco.MjModel.from_xml_string(TORQUES)
    data = start_state(model, None)
    found = find_blocks(model, data, joint_loads(model, data, simple_joints(model), []))
    blocks = {block.actuators[0]: block for block in calmed(model, data, 10, found).values()}
    assert (blocks["shoulder"].scale, blocks["shoulder"].is_clipped) == (40.0, False), (
        "a heavy link allows the whole range"
    )
    assert blocks["wrist"].is_clipped
    # Apply the largest input that an action can cause, for 5 s
    inputs = action_inputs(model, data.qpos, blocks)
    data.ctrl[:] = inputs.of(np.array([0.0, 100.0]))
    assert data.ctrl[1] == blocks["wrist"].scale
    fastest = 0.0
    for _ in range(2500):
        mujoco.mj_step(model, data)
        fastest = max(fastest, float(np.abs(data.qvel).max()))
    assert 10.0 < fastest < 300.0


@pytest.mark.parametrize(("armature", "scale"), [(0.05, 0.5), (0.005, 0.25)])
def test_position_motors_that_are_too_fast_get_smaller_actions(armature: float, scale: float) -> None:
    motor = '<position name="motor" joint="hinge" kp="500" kv="1"/>'
    xml = pendulum("0 0 1", f'armature="{armature}"', mass=0.01, length=0.1)
    model = mujoco.MjModel.from_xml_string(xml.replace("</mujoco>", f"<actuator>{motor}</actuator></mujoco>"))
    data = start_state(model, None)
    (block,) = calmed(model, data, 10, find_blocks(model, data, {0: 1.0})).values()
    assert (block.scale, block.is_clipped) == (scale, scale < 0.5)


def test_the_buffers_hold_the_contacts_of_a_robot_that_lies() -> None:
    """A robot that stands on three feet. Random actions do not overturn it, but it can lie on one side of its body."""
    feet = "".join(
        f'<geom type="sphere" size=".02" pos="{x} {y} -.22"/>' for x, y in ((0.15, 0), (-0.1, 0.1), (-0.1, -0.1))
    )
    model = mujoco.MjModel.from_xml_string(f"""
    <mujoco>
      <worldbody>
        <geom type="plane" size="0 0 1"/>
        <body pos="0 0 .24"><freejoint name="root"/>
          <geom type="box" size=".2 .2 .2" mass="10"/>{feet}
          <body pos="0 0 .3"><joint name="arm" axis="0 1 0"/><geom size=".02" pos=".05 0 0" mass=".01"/></body>
        </body>
      </worldbody>
      <actuator><position name="arm" joint="arm" kp=".01" kv=".01"/></actuator>
    </mujoco>""")
    start, lying = start_state(model, None), start_state(model, None)
    lying.qpos[2:7] = [0.2, math.sqrt(0.5), 0, math.sqrt(0.5), 0]
    mujoco.mj_step(model, lying, 500)
    blocks = find_blocks(model, start, {0: 1.0})
    rows, contacts = sample_sizes(model, start, 10, blocks, find_root(model))
    assert rows >= lying.nefc
    assert contacts >= lying.ncon
    assert sample_sizes(model, start, 10, blocks, [])[0] < lying.nefc, "a standing robot has fewer"


def test_a_leg_carries_the_robot_and_not_only_itself() -> None:
    model = mujoco.MjModel.from_xml_string(QUADRUPED)
    data = mujoco.MjData(model)
    data.qpos[:] = actuated(QUADRUPED)[1].home
    mujoco.mj_forward(model, data)
    knees = [model.joint(f"{name}_knee").id for name in ("fl", "fr", "rl", "rr")]
    legs = find_legs(model, data, 1, driven_joints(model, find_root(model)))
    assert sorted(leg.joints[-1] for leg in legs) == sorted(knees)
    alone, loaded = (joint_loads(model, data, knees, some)[knees[0]] for some in ([], legs))
    assert alone == pytest.approx(GRAVITY * (0.2 * 0.1 + 0.05 * 0.21), rel=0.01)
    assert loaded == pytest.approx(GRAVITY * model.body_subtreemass[1] / 2 * 0.22, rel=0.1)
