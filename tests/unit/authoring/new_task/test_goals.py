"""new-task examines a robot: how it moves, its first goal, and the content of its config."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from mjlab_dist.authoring.new_task import create, guessed
from mjlab_dist.authoring.new_task.goals import Goal
from mjlab_dist.authoring.new_task.robot import Robot, examine
from mjlab_dist.authoring.new_task.source import Names
from mjlab_dist.authoring.new_task.source.config import config_source
from mjlab_dist.authoring.new_task.source.model import model_source
from mjlab_dist.env import Env
from mjlab_dist.errors import UserError
from mjlab_dist.sim import start_warp

ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"

NAMES = Names(task="a", module="a", function="a", file="robot.xml")

HEAD = '<mujoco><compiler angle="radian" autolimits="true"/><option timestep="0.005"/>'


def arm(num_fingers: int = 0, num_links: int = 3, actuators: str = "") -> str:
    """Return the MJCF of an arm with links of 0.2 m, and fingers that slide by 4 cm."""
    fingers = "".join(
        f'<body pos=".2 {0.02 * i} 0"><joint name="finger{i}" type="slide" axis="0 1 0" range="0 .04"/>'
        '<geom type="box" size=".03 .005 .01" mass=".02"/></body>'
        for i in range(num_fingers)
    )
    axes = ["0 0 1", *["0 1 0"] * num_links]
    links = "".join(
        f'<body pos="{0.2 * bool(i)} 0 0"><joint name="j{i}" axis="{axes[i]}" range="-2 2"/>'
        '<geom type="capsule" fromto="0 0 0 .2 0 0" size=".02" mass="1"/>'
        for i in range(num_links)
    )
    return f"""{HEAD}
      <worldbody><body pos="0 0 .5">{links}{fingers}{"</body>" * num_links}</body></worldbody>{actuators}
    </mujoco>"""


def cart(pole_m: float, actuators: str = "") -> str:
    return f"""{HEAD}
      <worldbody><body pos="0 0 1">
        <joint name="cart" type="slide" axis="1 0 0" range="-1 1"/><geom type="box" size=".1 .1 .05" mass="1"/>
        <body><joint name="pole" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 {pole_m}" size=".02" mass=".1" contype="0" conaffinity="0"/>
        </body>
      </body></worldbody>{actuators}
    </mujoco>"""


FLEX = """
<mujoco>
  <worldbody><flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2"/></worldbody>
</mujoco>"""

BOX = '<mujoco><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'

BALL_ARM = f"""{HEAD}
  <worldbody><body pos="0 0 1">
    <joint name="shoulder" type="ball" damping=".1"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
    <body pos=".3 0 0"><joint name="elbow" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/></body>
  </body></worldbody>
  <actuator>
    <motor joint="shoulder" gear="1 0 0" ctrlrange="-1 1"/><motor joint="shoulder" gear="0 1 0" ctrlrange="-1 1"/>
    <motor joint="shoulder" gear="0 0 1" ctrlrange="-1 1"/><motor joint="elbow" ctrlrange="-1 1"/>
  </actuator>
</mujoco>"""

CAR_MOTOR = '<actuator><motor joint="cart" ctrlrange="-10 10"/></actuator>'

FISH = f"""{HEAD.replace('"0.005"', '"0.005" density="1000"')}
  <worldbody><body pos="0 0 1"><freejoint/><geom type="ellipsoid" size=".1 .03 .05" mass=".5"/>
    <body pos="-.1 0 0"><joint name="tail" axis="0 0 1" range="-1 1"/>
      <geom type="box" size=".05 .005 .03" pos="-.05 0 0" mass=".05"/>
    </body>
  </body></worldbody>
</mujoco>"""


def examined(tmp_path: Path, xml: str, goal: Goal | None = None) -> Robot:
    mjcf = tmp_path / "robot.xml"
    mjcf.write_text(xml)
    return examine(mjcf, goal=goal)


def compiled(tmp_path: Path, robot: Robot) -> mujoco.MjModel:
    """Return the compiled model, including the parts that new-task adds."""
    source = model_source(NAMES, robot)
    names: dict[str, object] = {"__file__": str(tmp_path / "model.py")}
    exec(source, names)
    return names["robot"]().compile()  # pyright: ignore[reportCallIssue]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "goal", "root", "can_fall"),
    [
        ("half_cheetah", "walk", "rootx", True),
        ("hopper", "walk", "rootx", True),
        ("swimmer", "walk", "slider1", False),
        ("ant", "walk", "root", True),
        ("humanoid", "walk", "root", True),
        ("inverted_pendulum", "balance", None, None),
        ("reacher", "reach", None, None),
        ("pusher_v5", "reach", None, None),
    ],
)
def test_the_kind_and_the_goal_of_the_robots_of_gymnasium(
    name: str, goal: Goal, root: str | None, *, can_fall: bool | None
) -> None:
    robot = examine(ASSETS / f"{name}.xml")
    assert robot.goal == goal
    assert (robot.base and robot.base.joint) == root
    assert (robot.base and robot.base.can_fall) == can_fall
    assert robot.keyframe in {None, "home"}
    if name in {"half_cheetah", "hopper"}:
        assert robot.base is not None
        assert (robot.base.height_joint, robot.base.tilt_joints) == ("rootz", ("rooty",))
        assert "rootx" not in robot.observed.positions, "the distance that the robot has covered is not observed"
        assert robot.observed.angles == ("rooty",), "the robot may turn over, so this angle has no limit"


@pytest.mark.parametrize(
    ("xml", "goal"),
    [
        (cart(0.5), "balance"),
        (cart(0.5, CAR_MOTOR), "balance"),
        (cart(-0.5, CAR_MOTOR), "swing-up"),
        (arm(), "reach"),
        (arm(2), "reach"),
        (arm(5), "hold"),
        (arm(0, 1), "hold"),
        (FISH, "walk"),
    ],
)
def test_the_goal_is_guessed(tmp_path: Path, xml: str, goal: Goal) -> None:
    assert examined(tmp_path, xml).goal == goal


def test_only_the_cart_of_a_cart_pole_gets_a_motor(tmp_path: Path) -> None:
    robot = examined(tmp_path, cart(0.5))
    assert robot.joints == ("cart",)
    assert robot.pendulum is not None
    assert robot.pendulum.high_m - robot.pendulum.low_m == pytest.approx(0.5)
    assert robot.pendulum.start_m == pytest.approx(robot.pendulum.high_m)


def test_a_driven_ball_joint_is_observed(tmp_path: Path) -> None:
    robot = examined(tmp_path, BALL_ARM)
    assert "hold" not in robot.goals
    assert "no goal suits the ball joint shoulder: add a reward for it (rewards)" in guessed(robot)
    config = config_source(NAMES, robot)
    assert 'observation(observations.joint_position, joint="shoulder")' in config
    assert 'observation(observations.joint_velocity, joint="shoulder")' in config


def drone(joint: str = "<freejoint/>", limits: str = 'ctrlrange="0 10"') -> str:
    places = [(x, y) for x in (-0.1, 0.1) for y in (-0.1, 0.15)]
    sites = "".join(f'<site name="rotor_{i}" pos="{x} {y} .02"/>' for i, (x, y) in enumerate(places))
    motors = "".join(f'<motor site="rotor_{i}" gear="0 0 2 0 0 .01" {limits}/>' for i in range(4))
    return f"""
    <mujoco>
      <worldbody><geom type="plane" size="0 0 1"/>
        <body name="drone" pos="0 0 1">{joint}<geom type="box" size=".1 .1 .02" mass="1.5"/>{sites}</body>
      </worldbody>
      <actuator>{motors}</actuator>
    </mujoco>"""


QUADRUPED = (Path(__file__).parents[3] / "data" / "models" / "quadruped.xml").read_text()


def test_a_robot_with_four_legs_learns_to_trot(tmp_path: Path) -> None:
    robot = examined(tmp_path, QUADRUPED)
    gait = robot.gait
    assert gait is not None
    model = compiled(tmp_path, robot)
    feet = [model.body(model.geom(foot).bodyid[0]).name for foot in gait.feet.names]
    assert dict(zip(feet, gait.offsets, strict=True)) == {
        "fl_calf": 0.0,
        "fr_calf": 0.5,
        "rl_calf": 0.5,
        "rr_calf": 0.0,
    }
    assert all(model.geom(foot).size[0] == 0.02 for foot in gait.feet.names)
    assert gait.is_symmetric
    assert 2.0 <= gait.frequency_hz <= 3.0
    half_steps = robot.control_hz / (2.0 * gait.frequency_hz)
    assert half_steps == pytest.approx(round(half_steps))
    assert 0.04 <= gait.lift_m <= 0.08
    assert 0.8 <= gait.forward_m_s[1] <= 1.2
    assert gait.forward_m_s[0] == -gait.forward_m_s[1]
    # The options of the config are those with which the robot was examined
    assert (robot.timestep_s, robot.control_hz) == pytest.approx((0.02 / 3, 50.0))
    source = config_source(NAMES, robot)
    assert "SymmetryConfig(use_data_augmentation=True)" in source
    assert f"_FEET = {gait.feet.names}".replace("'", '"') in source
    assert re.search(r"^it trots at .*\n(.*\n)*.*names for 4 feet", "\n".join(guessed(robot)), re.MULTILINE)


def biped(num_leg_joints: int = 6) -> str:
    """Return the MJCF of a robot of 30 kg with two legs and two arms. Each foot has two geoms and no name."""
    axes = {"hip_yaw": "0 0 1", "hip_roll": "1 0 0", "hip_pitch": "0 1 0", "knee": "0 1 0", "pitch": "0 1 0"}
    axes["roll"] = "1 0 0"
    limbs = ""
    for side, y in (("left", 0.1), ("right", -0.1)):
        joints = [
            f'<joint name="{side}_{name}" axis="{axis}" range="-1.5 1.5"/>'
            for name, axis in list(axes.items())[:num_leg_joints]
        ]
        soles = "".join(
            f'<geom type="capsule" fromto="-.05 {at} -.05 .12 {at} -.05" size=".01" mass=".3"/>' for at in (-0.03, 0.03)
        )
        limbs += f"""
          <body pos="0 {y} 0">{"".join(joints[:3])}<geom type="capsule" fromto="0 0 0 0 0 -.35" size=".04" mass="3"/>
            <body pos="0 0 -.35">{joints[3]}<geom type="capsule" fromto="0 0 0 0 0 -.35" size=".03" mass="2"/>
              <body pos="0 0 -.35">{"".join(joints[4:])}{soles}</body>
            </body>
          </body>
          <body pos="0 {2 * y} .4"><joint name="{side}_arm" axis="0 1 0" range="-1.5 1.5"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/></body>"""
    return f"""{HEAD}
      <worldbody><geom type="plane" size="0 0 1"/><body name="pelvis" pos="0 0 .76"><freejoint name="root"/>
        <geom type="box" size=".08 .1 .2" pos="0 0 .2" mass="16"/>{limbs}</body></worldbody>
    </mujoco>"""


def test_a_robot_with_two_legs_learns_to_walk(tmp_path: Path) -> None:
    robot = examined(tmp_path, biped())
    gait = robot.gait
    assert gait is not None
    assert (gait.feet.kind, gait.offsets, gait.is_symmetric) == ("body", (0.0, 0.5), True)
    model = compiled(tmp_path, robot)
    for foot, joint in zip(gait.feet.names, ("left_roll", "right_roll"), strict=True):
        assert model.body(foot).id == model.joint(joint).bodyid[0]
    assert 1.3 <= gait.frequency_hz <= 1.7
    assert gait.forward_m_s[1] == pytest.approx(0.9, abs=0.15)
    source = config_source(NAMES, robot)
    assert 'ContactConfig(names=_FEET, kind="subtree")' in source
    assert any(line.startswith("it walks at ") for line in guessed(robot))


def test_a_robot_that_falls_over_on_two_legs_starts_on_bent_legs(tmp_path: Path) -> None:
    joints = re.findall(r'<joint name="(\w+)"', biped())
    motors = "".join(f'<position joint="{joint}" kp="2" kv="0.2"/>' for joint in joints)
    robot = examined(tmp_path, biped().replace("</mujoco>", f"<actuator>{motors}</actuator></mujoco>"))
    assert robot.stands is False
    key = compiled(tmp_path, robot).key("home")
    assert 0.3 < abs(key.qpos[7 + joints.index("left_knee")]) < 1.2
    assert 0.6 < key.qpos[2] < 0.74


@pytest.mark.parametrize("is_added", [True, False])
def test_actions_move_stiff_legs_and_the_arms_of_walking_robots_by_less(tmp_path: Path, *, is_added: bool) -> None:
    joints = re.findall(r'<joint name="(\w+)"', biped())
    motors = "".join(f'<position name="{joint}" joint="{joint}" kp="200" kv="5"/>' for joint in joints)
    actuator = "" if is_added else f"<actuator>{motors}</actuator>"
    robot = examined(tmp_path, biped().replace("</mujoco>", f"{actuator}</mujoco>"))
    stiffness = dict.fromkeys(joints, 200.0)
    for motor in robot.motors.values():
        stiffness |= dict.fromkeys(motor.joints, motor.stiffness)
    for joint in joints:
        (scale,) = [block.scale for block in robot.blocks.values() if joint in block.actuators]
        share = 0.25 if "arm" in joint else 1.0
        assert scale == pytest.approx(share * min(0.5, 0.15 * 9.81 * 30 * 0.7 / stiffness[joint]), rel=0.1)


def test_actions_move_stiff_legs_by_less(tmp_path: Path) -> None:
    joints = re.findall(r'<joint name="(\w+)"', QUADRUPED)
    motors = "".join(f'<position joint="{joint}" kp="200" kv="5"/>' for joint in joints)
    robot = examined(tmp_path, QUADRUPED.replace("</mujoco>", f"<actuator>{motors}</actuator></mujoco>"))
    model = compiled(tmp_path, robot)
    weight_n = 9.81 * model.body_mass.sum()
    (block,) = robot.blocks.values()
    assert 200 * block.scale == pytest.approx(0.4 * weight_n * 0.3, rel=0.3)


@pytest.mark.parametrize(
    ("xml", "gait"),
    [
        (QUADRUPED.replace("0 -0.08 0", "0 -0.12 0", 1), "lopsided"),
        (re.sub(r'<joint name="\w+_abduction"[^>]*>', "", QUADRUPED), "none"),
        (QUADRUPED.replace('range="-2.8 -0.8"', "", 1), "none"),
        (re.sub(r'(?s)<body name="rr_hip".*</body>(?=\s*</body>\s*</worldbody>)', "", QUADRUPED), "none"),
        (biped(num_leg_joints=4), "none"),
    ],
    ids=["lopsided", "two joints", "a wheel", "three legs", "no ankles"],
)
def test_only_symmetric_robots_learn_from_mirrored_samples(tmp_path: Path, xml: str, gait: str) -> None:
    found = examined(tmp_path, xml).gait
    assert (found is None) == (gait == "none")
    assert found is None or not found.is_symmetric


@pytest.mark.parametrize("limits", ['ctrlrange="0 10"', ""])
def test_a_drone_hovers_at_action_0(tmp_path: Path, limits: str) -> None:
    (tmp_path / "drone.xml").write_text(drone(limits=limits))
    made = create("my-drone", tmp_path / "drone.xml", tmp_path)
    assert made.problem == ""
    assert made.robot.goals == ("hold", "none")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "drone.xml"))
    data = mujoco.MjData(model)
    for block in made.robot.blocks.values():
        assert block.scale == pytest.approx(0.1 * float(block.offset), rel=0.05)
        for pattern in block.actuators:
            matched = [i for i in range(4) if re.fullmatch(pattern, f"rotor_{i}")]
            data.ctrl[matched] = block.offset
    mujoco.mj_step(model, data, 500)
    assert np.abs(data.qvel[:3]).max() < 0.05
    assert data.qpos[2] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("xml", "part"),
    [
        (drone(joint=""), "add <freejoint/>"),
        (FLEX, "only soft bodies"),
        (BOX, "choose another MJCF"),
        (BALL_ARM.replace('<motor joint="elbow" ctrlrange="-1 1"/>', ""), "drive only shoulder; use hinges$"),
    ],
    ids=["fixed drone", "cloth", "box", "ball joints"],
)
def test_a_model_without_joints_to_drive_is_refused(tmp_path: Path, xml: str, part: str) -> None:
    with pytest.raises(UserError, match=part):
        examined(tmp_path, xml)


@pytest.mark.parametrize(("xml", "goal"), [(cart(0.5), "walk"), (FISH, "reach"), (arm(5), "balance")])
def test_a_goal_that_does_not_suit_the_robot_is_refused(tmp_path: Path, xml: str, goal: Goal) -> None:
    with pytest.raises(UserError, match=rf"^--goal {goal}: .*; choose .* or none$"):
        examined(tmp_path, xml, goal)


def test_the_tool_point_of_a_gripper_is_between_its_pads(tmp_path: Path) -> None:
    """A hand with the lengths of the Franka Hand, whose data sheet places the tool point 10.34 cm from the flange."""
    fingers = "".join(
        f'<body pos="0 {side}.001 .0584"><joint name="finger{side}" type="slide" axis="0 {side}1 0" range="0 .04"/>'
        f'<geom type="box" size=".01 .01 .02" pos="0 {side}.01 .015" mass=".01"/>'
        f'<geom type="box" size=".008 .004 .009" pos="0 {side}.006 .0446" mass=".005"/></body>'
        for side in ("", "-")
    )
    hand = f'<body pos=".2 0 0" euler="0 1.5708 0"><geom size=".03" mass=".7"/>{fingers}</body>'
    xml = arm().replace(3 * "</body>", hand + 3 * "</body>", 1)
    end = examined(tmp_path, xml).end
    assert end is not None
    np.testing.assert_allclose(end.pos, [0.2 + 0.1034, 0.0, 0.0], atol=3e-3)


@pytest.mark.parametrize(("height_m", "pedestal_m"), [(0.0, 0.05), (0.914, 0.05), (0.914, 0.914)])
def test_an_arm_stands_on_the_floor(tmp_path: Path, height_m: float, pedestal_m: float) -> None:
    half_m = pedestal_m / 2
    base = f'<body pos="0 0 {height_m}"><geom type="box" size=".1 .1 {half_m}" pos="0 0 {-half_m}"/>'
    robot = examined(tmp_path, arm().replace('<body pos="0 0 .5">', base))
    assert compiled(tmp_path, robot).geom("backdrop").pos[2] == pytest.approx(height_m - pedestal_m, abs=1e-3)


LEG = '<body><joint/><geom size=".05" pos=".2 0 0"/></body>'

WALKER = f'<mujoco><worldbody><body pos="0 0 1"><freejoint/><geom size=".1"/>{LEG}</body></worldbody></mujoco>'


def at_reference(model: mujoco.MjModel) -> mujoco.MjData:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


@pytest.mark.parametrize(("xml", "moved"), [(WALKER, [3.0, 4.0, 0.0]), (arm(), [0.0, 0.0, 0.0])])
def test_the_light_of_a_robot_that_moves_follows_it(tmp_path: Path, xml: str, moved: list[float]) -> None:
    model = compiled(tmp_path, examined(tmp_path, xml))
    data = at_reference(model)
    before = data.light_xpos[0].copy()
    data.qpos[:3] += moved
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.light_xpos[0] - before, moved, atol=1e-6)
    np.testing.assert_allclose(data.light_xdir[0], model.light_dir[0], atol=1e-6)


def test_an_end_effector_is_the_tip_of_an_arm_or_the_middle_of_its_fingers(tmp_path: Path) -> None:
    tip = examined(tmp_path, arm()).end
    assert tip is not None
    np.testing.assert_allclose(tip.pos, [0.2, 0.0, 0.0], atol=1e-3)
    grip = examined(tmp_path, arm(2)).end
    assert grip is not None
    np.testing.assert_allclose(grip.pos, [0.22, 0.01, 0.0], atol=2e-3)
    # The box of targets is not empty, and most of its corners are at most 0.75 m from the base of the arm.
    for low, high in tip.box:
        assert low < high
    corners = np.array(np.meshgrid(*tip.box)).reshape(3, -1).T - [0.0, 0.0, 0.5]
    assert np.median(np.linalg.norm(corners, axis=1)) < 0.75


def test_a_fish_needs_no_ground_and_cannot_fall(tmp_path: Path) -> None:
    robot = examined(tmp_path, FISH)
    assert robot.base is not None
    assert not robot.base.can_fall
    assert not robot.lacks.ground
    assert robot.stands is None


@pytest.mark.slow
def test_the_summary_names_the_driven_robots(tmp_path: Path) -> None:
    def walker(name: str, legs: int) -> str:
        leg = '<body><joint name="{0}" axis="0 1 0"/><geom size=".05" pos="0 0 -.2"/></body>'
        joints = "".join(leg.format(f"{name}_{i}") for i in range(legs))
        return f'<body name="{name}" pos="{legs} 0 1"><freejoint name="of_{name}"/><geom size=".1"/>{joints}</body>'

    door = '<body name="door"><joint/><geom size=".1" pos=".1 0 0"/></body>'
    motors = "".join(f'<motor joint="{joint}" ctrlrange="-1 1"/>' for joint in ("a_0", "b_0"))
    xml = f"{HEAD}<worldbody>{walker('a', 1)}{walker('b', 2)}{door}</worldbody>%s</mujoco>"
    assert "the policy drives b, and not a and door (actions)" in guessed(examined(tmp_path, xml % ""))
    lines = guessed(examined(tmp_path, xml % f"<actuator>{motors}</actuator>"))
    assert "one policy drives a and b; the goal is for the robot whose base has the joint of_a (actions)" in lines
    assert not [line for line in guessed(examined(tmp_path, arm())) if "drives" in line]


def test_an_arm_with_torque_motors_floats_at_action_0(tmp_path: Path) -> None:
    motors = "".join(f'<motor joint="j{i}" ctrlrange="-20 20"/>' for i in range(3))
    robot = examined(tmp_path, arm(actuators=f"<actuator>{motors}</actuator>"))
    assert robot.lacks.weightless == ("robot_1",)
    assert "gravity is compensated, because the robot sags with torque motors (model.py)" in guessed(robot)
    model = compiled(tmp_path, robot)
    data = mujoco.MjData(model)
    while data.time < 3.0:
        mujoco.mj_step(model, data)
    np.testing.assert_allclose(data.qpos, model.qpos0, atol=1e-6)
    # Gravity is compensated neither for position motors, which hold an arm up, nor for a pendulum, which should fall.
    assert not examined(tmp_path, arm()).lacks.weightless
    pole = '<body name="pole"><joint name="j" axis="0 1 0"/><geom size=".1" pos=".3 0 0"/></body>'
    motor = '<actuator><motor joint="j" ctrlrange="-.1 .1"/></actuator>'
    swinging = examined(tmp_path, f"{HEAD}<worldbody>{pole}</worldbody>{motor}</mujoco>", "swing-up")
    assert not swinging.lacks.weightless


def test_soft_bodies_are_not_driven(tmp_path: Path) -> None:
    cloth = '<flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" pos="1 0 1" dim="2" radius=".01"/>'
    robot = examined(tmp_path, arm().replace("</worldbody>", f"{cloth}</worldbody>"))
    assert robot.goal == "reach"
    assert robot.joints == ("j0", "j1", "j2")
    assert robot.observed.positions == robot.joints
    assert not robot.observed.are_all
    source = config_source(NAMES, robot)
    assert "observation(observations.JointVelocities, joints=(*_POSITIONS, *_ANGLES))" in source


@pytest.mark.parametrize("gap_m", [-0.03, 0.0, 0.01])
def test_a_link_does_not_collide_with_the_fixed_body_that_it_touches(tmp_path: Path, gap_m: float) -> None:
    base = f'<geom type="cylinder" size=".05 .1" pos="0 0 {-0.12 - gap_m}"/>'
    xml = arm().replace('<body pos="0 0 .5">', f'<body name="base" pos="0 0 .5">{base}', 1)
    robot = examined(tmp_path, xml)
    assert robot.lacks.touching == ((("base", "body_2"),) if gap_m <= 0 else ())
    assert at_reference(compiled(tmp_path, robot)).ncon == 0


TWINS = """
<mujoco><worldbody>
  <body name="left"><joint name="left" axis="0 1 0"/><geom size=".1"/><geom size=".02" pos=".2 .3 0"/></body>
  <body name="right"><joint name="right" axis="0 1 0"/><geom size=".1"/><geom size=".02" pos=".2 -.3 0"/></body>
</worldbody></mujoco>"""


@pytest.mark.parametrize(
    ("xml", "pair"),
    [
        (arm().replace("<worldbody>", '<worldbody><geom size=".05" pos="0 0 .47"/>', 1), ("world", "body_2")),
        (TWINS, ("left", "right")),
    ],
    ids=["a base that is part of the world", "siblings"],
)
def test_contacts_that_no_joint_can_open_are_ignored(tmp_path: Path, xml: str, pair: tuple[str, str]) -> None:
    robot = examined(tmp_path, xml)
    assert robot.lacks.touching == (pair,)
    assert not robot.jams


def test_contacts_that_are_no_fault_stay(tmp_path: Path) -> None:
    """A cube on a table touches it in all poses of the arm, and a wheel touches the ground at all of its positions."""
    cube = '<geom type="plane" size="1 1 .1" pos="0 0 -1"/><body pos="0 0 -.9"><freejoint/><geom size=".1"/></body>'
    assert not examined(tmp_path, arm().replace("</worldbody>", f"{cube}</worldbody>")).lacks.touching
    wheel = '<body pos="{x} 0 0"><joint axis="0 1 0"/><geom type="cylinder" size=".1 .02" euler="90 0 0"/></body>'
    body = f'<body pos="0 0 .1"><freejoint/><geom size=".05"/>{wheel.format(x=-0.3)}{wheel.format(x=0.3)}</body>'
    ground = '<geom type="plane" size="1 1 .1"/>'
    robot = examined(tmp_path, f"<mujoco><worldbody>{ground}{body}</worldbody></mujoco>")
    assert not robot.lacks.touching
    assert not robot.jams


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('name="j0" damping="1e5"', "its motor is too weak"),
        ('name="j0"', "world and body 2 touch"),
    ],
)
def test_joints_that_actions_do_not_move_are_named(tmp_path: Path, more: str, reason: str) -> None:
    walls = "".join(f'<geom type="box" size=".1 .01 .1" pos=".1 {y} .5"/>' for y in (-0.033, 0.033))
    xml = arm().replace('name="j0"', more)
    robot = examined(tmp_path, xml if "damping" in more else xml.replace("<worldbody>", f"<worldbody>{walls}"))
    assert robot.jams == {"j0": reason}
    assert f"actions do not move the joint j0, because {reason}" in guessed(robot)


def test_a_robot_that_a_mocap_body_moves_gets_motors_instead(tmp_path: Path) -> None:
    base = '<joint name="x" type="slide" axis="1 0 0" damping="1e11"/><joint name="lift" type="slide" damping="1e7"/>'
    base += '<geom size=".1"/>'
    xml = arm().replace('<body pos="0 0 .5">', f'<body name="mocap" mocap="true"/><body pos="0 0 .5">{base}', 1)
    xml = xml.replace("</worldbody>", '</worldbody><equality><weld body1="mocap" body2="link"/></equality>')
    robot = examined(tmp_path, xml.replace('<body pos="0.2 0 0">', '<body name="link" pos="0.2 0 0">', 1))
    assert robot.goal == "reach", "joints with extreme damping do not move the base"
    assert robot.joints == ("j0", "j1", "j2")
    assert "its motors, instead of its mocap body, move it (model.py)" in guessed(robot)
    assert not compiled(tmp_path, robot).eq_active0.any()


AHEAD = '<camera name="overview" pos=".3 -2 .1" xyaxes="1 0 0 0 0 1"/>'


@pytest.mark.parametrize(
    ("camera", "added"),
    [
        (AHEAD, ""),
        ("", "overview"),
        (AHEAD.replace("-2", "-.2"), "overview_2"),  # inside the arm
        (AHEAD.replace("-2", "2"), "overview_2"),  # looks away from the arm
        (AHEAD.replace("-2", "-200"), "overview_2"),  # too far away
    ],
)
def test_a_camera_is_added_if_that_of_the_file_does_not_show_the_robot(tmp_path: Path, camera: str, added: str) -> None:
    robot = examined(tmp_path, arm().replace("<worldbody>", f"<worldbody>{camera}"))
    assert robot.lacks.camera == added
    model = compiled(tmp_path, robot)
    shown = model.camera(added or "overview").id
    # The center of the arm is in the center of the picture.
    data = at_reference(model)
    to_robot = data.subtree_com[model.body(1).id] - data.cam_xpos[shown]
    looking = -data.cam_xmat[shown].reshape(3, 3)[:, 2]
    assert looking @ to_robot > 0.97 * np.linalg.norm(to_robot)


def test_what_is_missing_for_videos_is_added_without_contacts(tmp_path: Path) -> None:
    robot = examined(tmp_path, arm())
    lacks = robot.lacks
    assert (lacks.ground, lacks.backdrop, lacks.camera, lacks.light) == ("", "backdrop", "overview", "sun")
    model = compiled(tmp_path, robot)
    assert (model.ncam, model.nlight, model.nmocap) == (1, 1, 1)
    floor = model.geom("backdrop")
    assert floor.contype[0] == floor.conaffinity[0] == 0


ODD = {"j0": "j (0)", "j1": "j\\d", "j2": ".*", "finger0": "[finger]", "cart": "cart+", "pole": "$pole|{2}"}
"""Names of joints with characters that have a meaning in regular expressions."""


def odd(xml: str) -> str:
    """Give joints odd names, and add elements whose names new-task prefers for its own."""
    for name, other in ODD.items():
        xml = xml.replace(f'name="{name}"', f'name="{other}"')
    geoms = "".join(f'<geom name="{name}" size=".01" contype="0" conaffinity="0"/>' for name in ("floor", "backdrop"))
    bodies = "".join(f'<body name="{name}"/>' for name in ("hand", "pole", "reach_target", "body_1", "robot_1"))
    assets = '<texture name="tiles" builtin="flat" type="2d" width="1" height="1"/><material name="tiles"/>'
    return xml.replace("</worldbody>", f'{geoms}{bodies}<site name="end_effector"/></worldbody><asset>{assets}</asset>')


def test_a_floor_that_nothing_touches_is_no_ground(tmp_path: Path) -> None:
    robot = examined(tmp_path, odd(WALKER))
    assert robot.lacks.ground == "floor_2"
    assert compiled(tmp_path, robot).geom("floor_2").contype[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "xml", "goal"),
    [
        ("cart_balance", odd(cart(0.5)), None),
        ("cart_swing", cart(0.5), "swing-up"),
        ("arm_reach", odd(arm(2)), None),
        ("arm_hold", odd(arm(2).replace('range="-2 2"', "", 1)), "hold"),
        ("ball_none", BALL_ARM, None),
        ("fish_walk", FISH, None),
        ("cheetah_walk", (ASSETS / "half_cheetah.xml").read_text(), None),
        ("cheetah_hold", (ASSETS / "half_cheetah.xml").read_text(), "hold"),
        ("ant_hold", (ASSETS / "ant.xml").read_text(), "hold"),
        ("ant_none", (ASSETS / "ant.xml").read_text(), "none"),
    ],
)
def test_each_task_steps_with_random_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, xml: str, goal: Goal | None
) -> None:
    (tmp_path / "robot.xml").write_text(xml)
    made = create(name, tmp_path / "robot.xml", tmp_path, goal=goal)
    monkeypatch.syspath_prepend(str(made.folder))
    config = getattr(importlib.import_module(f"{name}.config"), name)()
    start_warp("cpu")
    env = Env(config.env, 4, "cpu")
    torch.manual_seed(0)
    for _ in range(60):
        observed, reward, _, _ = env.step(torch.randn(4, env.num_actions))
        assert observed["actor"].isfinite().all()
        assert reward.isfinite().all()
        assert env.sim.qpos.isfinite().all()
