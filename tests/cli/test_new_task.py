"""mjlab-dist new-task: MJCFs of other projects become tasks that train. If an MJCF is refused, no files are left."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
from conftest import BIN, Command, Done

from mjlab_dist.authoring.check.host_syncs import HostSyncs
from mjlab_dist.authoring.new_task import NewTask, create
from mjlab_dist.authoring.new_task.robot import examine
from mjlab_dist.authoring.new_task.robot_files import copy_files, find_files
from mjlab_dist.authoring.new_task.source import Names, function_name, package_source
from mjlab_dist.authoring.new_task.source.config import config_source
from mjlab_dist.authoring.new_task.source.model import model_source
from mjlab_dist.authoring.new_task.source.terms import terms_source
from mjlab_dist.config import ActuatorConfig, SimConfig, registry
from mjlab_dist.env import Env
from mjlab_dist.runs.run_dir import read_config_file, read_metrics
from mjlab_dist.sim import build_model, start_warp

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "tasks" / "mjlab_dist_tasks" / "template"
ASSETS = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
NEW_TASK = ("mjlab-dist", "new-task")

# A floating box without ground, camera, names or actuators. Its mesh and an included file are in other folders.
DOG = """
<mujoco model="dog">
  <compiler meshdir="meshes" autolimits="true"/>
  <include file="parts/assets.xml"/>
  <worldbody>
    <body>
      <freejoint/>
      <geom type="mesh" mesh="trunk" mass="5"/>
      <body name="front" pos=".15 0 -.05">
        <joint axis="0 1 0" range="-60 60"/>
        <geom type="box" pos="0 0 -.1" size=".02 .15 .1" mass=".5"/>
      </body>
      <body pos="-.15 0 -.05">
        <joint axis="0 1 0" range="-60 60"/>
        <geom type="box" pos="0 0 -.1" size=".02 .15 .1" mass=".5"/>
      </body>
    </body>
  </worldbody>
  <keyframe><key qpos="0 0 .2 1 0 0 0 0 0"/></keyframe>
</mujoco>
"""

ASSETS_OF_DOG = '<mujoco><asset><mesh name="trunk" file="deep/trunk.obj" scale=".4 .2 .1"/></asset></mujoco>'

CUBE = """
v -.5 -.5 -.5
v .5 -.5 -.5
v -.5 .5 -.5
v .5 .5 -.5
v -.5 -.5 .5
v .5 -.5 .5
v -.5 .5 .5
v .5 .5 .5
f 1 3 2
f 2 3 4
f 5 6 7
f 6 8 7
f 1 2 5
f 2 6 5
f 3 7 4
f 4 7 8
f 1 5 3
f 3 5 7
f 2 4 6
f 4 8 6
"""

ARM = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <worldbody>
    <body pos="0 0 .3">
      <joint name="shoulder" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/>
      <body pos=".3 0 0">
        <joint name="elbow" axis="0 1 0" range="-2 2"/>
        <geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
        <body pos=".3 0 0">
          <joint name="finger" type="slide" axis="0 1 0" range="0 .03"/>
          <geom type="box" size=".01 .01 .02"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def write_dog(folder: Path) -> Path:
    for name, text in {"dog.xml": DOG, "parts/assets.xml": ASSETS_OF_DOG, "meshes/deep/trunk.obj": CUBE}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "dog.xml"


def install(project: Path, site: Path) -> dict[str, str]:
    """Build and install a project without its dependencies. Return environment variables that let Python find it."""
    command = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=site.parent)
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(site)}


def made(done: Done) -> None:
    assert done.code == 0, done.err
    assert done.err == ""


def trained(command: Command, task: str, env: dict[str, str], *flags: str) -> dict[str, Any]:
    """Train for two iterations, and return the last row of metrics."""
    flags = ("--gpu-ids", "None", "--num-envs", "16", "--max-iterations", "2", *flags)
    done = command("mjlab-dist", "train", task, *flags, env=env, timeout_s=600)
    assert done.code == 0, done.err
    (run,) = (command.cwd / "logs" / task).iterdir()
    rows = read_metrics(run)
    assert len(rows) == 2
    return rows[-1]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the packages and the project files of this repository."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("src", "tasks", "typings"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    return root


def in_checkout(command: Command, checkout: Path) -> dict[str, str]:
    """Run commands in the copy of this repository. Return environment variables that let them import its packages."""
    command.cwd = checkout
    return {"PYTHONPATH": os.pathsep.join(str(checkout / name) for name in ("src", "tasks"))}


# Files that new-task creates


def test_the_template_equals_the_output_of_new_task_for_its_mjcf() -> None:
    robot = examine(TEMPLATE / "robot.xml")
    names = Names(task="template", module="mjlab_dist_tasks.template", function="template", file="robot.xml")
    assert not robot.lacks
    assert (TEMPLATE / "__init__.py").read_text() == package_source(names)
    assert (TEMPLATE / "config.py").read_text() == config_source(names, robot)
    assert (TEMPLATE / "terms.py").read_text() == terms_source(names, robot)


SHOW_CONFIG = """
import json, pkgutil, sys
from mjlab_dist.config.serialization import to_plain
config = to_plain(pkgutil.resolve_name(sys.argv[1])())
heavy = {"torch", f"{sys.argv[1].partition('.')[0]}.terms"} & sys.modules.keys()
print(json.dumps([config, sorted(heavy)]))
"""


def shown_config(command: Command, made: NewTask) -> tuple[dict[str, Any], set[str]]:
    """Return the config of a package that is not installed, and which heavy modules are imported to create the config.

    Heavy modules are torch and the module of the task's terms.
    """
    project = tomllib.loads((made.folder / "pyproject.toml").read_text())["project"]
    place = project["entry-points"]["mjlab_dist.tasks"][made.task]
    done = command(sys.executable, "-c", SHOW_CONFIG, place, env={"PYTHONPATH": str(made.folder)})
    assert done.code == 0, done.err
    config, heavy = json.loads(done.out)
    return config, set(heavy)


@pytest.mark.slow
def test_a_package_names_functions_without_importing_torch(command: Command) -> None:
    made = create("dog", write_dog(command.cwd / "robots"), command.cwd)
    config, heavy = shown_config(command, made)
    assert config["env"]["rewards"]["forward"]["func"] == "dog.terms:forward_speed"
    assert config["env"]["terminations"]["fallen"]["func"] == "mjlab_dist.mdp.terminations:too_low"
    assert not heavy

    (made.package / "__init__.py").write_text("")
    assert "import torch" in (made.package / "terms.py").read_text()
    slower, heavy = shown_config(command, made)
    assert slower == config
    assert heavy == {"torch", "dog.terms"}


@pytest.mark.slow
def test_a_task_may_have_the_name_of_a_module_that_its_config_imports(command: Command) -> None:
    assert [function_name(name) for name in ("reward", "rewards", "terms", "dog")] == [
        "reward_task", "rewards_task", "terms_task", "dog",
    ]  # fmt: skip
    mjcf = command.cwd / "arm.xml"
    mjcf.write_text(ARM)
    config, heavy = shown_config(command, create("rewards", mjcf, command.cwd))
    assert config["env"]["rewards"]["reached"]["func"] == "rewards.terms:AtTarget"
    assert config["env"]["rewards"]["effort"]["func"] == "mjlab_dist.mdp.rewards:action_size"
    assert not heavy


@pytest.mark.slow
def test_the_template_trains(command: Command) -> None:
    row = trained(command, "template", {}, "--env.rewards.effort.weight", "0")
    assert row["overflowed_envs"] == 0
    assert row["mean_step_reward"] is not None
    assert 0 < row["mean_step_reward"] < 1.5


@pytest.mark.slow
def test_the_ant_of_gymnasium_becomes_a_package_that_trains(command: Command) -> None:
    done = command.here(*NEW_TASK, "my-ant", "--mjcf", str(ASSETS / "ant.xml"))
    made(done)
    assert done.out.splitlines()[-3:] == [
        "  uv pip install -e my_ant",
        "  mjlab-dist train my-ant",
        "  mjlab-dist play my-ant --video my-ant.mp4",
    ]
    env = install(command.cwd / "my_ant", command.cwd / "site")
    listed = command("list-tasks", env=env).out
    assert re.search(r"^my-ant +Walk forward, with ant.xml\.$", listed, re.MULTILINE)
    flags = ("--env.rewards.forward.params.max-m-s", "2", "--agent.num-steps-per-env", "160")  # until ants fall
    row = trained(command, "my-ant", env, *flags)
    assert row["overflowed_envs"] == 0
    assert row["mean_return"] is not None, "no ant has fallen"
    (run,) = (command.cwd / "logs" / "my-ant").iterdir()
    # The package is not installed in this environment. Its functions can therefore be read only with trust
    config = read_config_file(run, trust=True)
    assert config.env.rewards["forward"].params == {"max_m_s": 2, "joint": "root"}
    assert config.env.sim.options.integrator == "implicitfast"


@pytest.mark.long
@pytest.mark.parametrize("robot", sorted(ASSETS.glob("*.xml")), ids=lambda robot: robot.stem)
def test_every_robot_of_gymnasium_becomes_a_task_that_trains(command: Command, robot: Path) -> None:
    made(command(*NEW_TASK, "my-robot", "--mjcf", str(robot), timeout_s=600))
    env = install(command.cwd / "my_robot", command.cwd / "site")
    trained(command, "my-robot", env)


@pytest.mark.slow
@pytest.mark.long
def test_an_arm_of_gymnasium_becomes_a_task_of_a_checkout_that_trains(command: Command, checkout: Path) -> None:
    env = in_checkout(command, checkout)
    before = (checkout / "pyproject.toml").read_text()
    done = command(*NEW_TASK, "my-reacher", "--mjcf", str(ASSETS / "reacher.xml"), env=env)
    made(done)
    assert done.out.splitlines()[-2:] == [
        "  uv run train my-reacher",
        "  uv run play my-reacher --video my-reacher.mp4",
    ]
    line = 'my-reacher = "mjlab_dist_tasks.my_reacher.config:my_reacher"\n'
    assert (checkout / "pyproject.toml").read_text().replace(line, "") == before
    env = install(checkout, checkout / "site")
    listed = command("list-tasks", env=env).out
    aim = "Move the end effector to target positions"
    assert re.search(rf"^my-reacher +{aim}, with reacher.xml\.$", listed, re.MULTILINE)
    row = trained(command, "my-reacher", env, "--env.rewards.effort.weight", "0", "--env.rewards.near.weight", "0")
    assert 0 < row["mean_step_reward"] < 1


@pytest.mark.slow
@pytest.mark.long
def test_a_robot_without_motors_names_or_ground_becomes_a_task_that_trains(command: Command) -> None:
    mjcf = write_dog(command.cwd / "elsewhere")
    mjcf.write_text(mjcf.read_text().replace('"front"', '"früh"'))
    # Files are written in UTF-8, whatever the locale
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    made(command(*NEW_TASK, "dog", "--mjcf", str(mjcf), "--dir", "elsewhere", env=ascii_only))
    shutil.move(mjcf.parent / "meshes", command.cwd / "moved")
    env = install(command.cwd / "elsewhere" / "dog", command.cwd / "site")
    assert trained(command, "dog", env)["overflowed_envs"] == 0


@pytest.mark.slow
def test_generated_files_pass_the_checks_of_the_project(checkout: Path) -> None:
    arm = checkout / "arm.xml"
    arm.write_text(ARM)
    robots = {"dog": write_dog(checkout / "dog"), "arm": arm} | {
        name: ASSETS / f"{name}.xml" for name in ("ant", "inverted_pendulum")
    }
    folders: list[str] = []
    for name, mjcf in robots.items():
        robot = examine(mjcf)
        module = f"checked_{name}"
        names = Names(task=module, module=f"mjlab_dist_tasks.{module}", function=module, file=mjcf.name)
        folder = checkout / "tasks" / "mjlab_dist_tasks" / module
        folder.mkdir()
        (folder / "__init__.py").write_text(package_source(names))
        (folder / "config.py").write_text(config_source(names, robot))
        (folder / "terms.py").write_text(terms_source(names, robot))
        if robot.lacks:
            (folder / "model.py").write_text(model_source(names, robot))
        folders.append(str(folder))
    for check in (
        ["ruff", "check"],
        ["ruff", "format", "--check"],
        ["basedpyright", "--pythonpath", sys.executable, "--project", str(checkout)],
    ):
        done = subprocess.run(
            [str(BIN / check[0]), *check[1:], *folders], capture_output=True, text=True, check=False, cwd=checkout
        )
        assert done.returncode == 0, done.stdout + done.stderr


# What new-task finds in an MJCF


def test_the_quadruped_keeps_its_own_position_actuators() -> None:
    robot = examine(ROOT / "tasks" / "mjlab_dist_tasks" / "quadruped" / "quadruped.xml")
    assert robot.base is not None
    assert robot.base.joint == "root"
    assert robot.base.is_upright
    assert robot.base.rise_m == 0
    assert 0.06 < (robot.base.min_height_m or 0.0) < 0.2, (
        "lower than a base on bent legs, and higher than a belly on the ground"
    )
    assert len(robot.joints) == 12
    (block,) = robot.blocks.values()
    assert (block.kind, block.offset, block.actuators) == ("position", "home", (".*",))
    assert not robot.motors
    assert not robot.lacks
    assert robot.keyframe == "home"
    assert robot.decimation == 3
    assert robot.njmax >= 4 * 4
    assert robot.nconmax >= 4


def test_different_kinds_of_actuators_become_separate_action_terms(tmp_path: Path) -> None:
    mjcf = tmp_path / "arm.xml"
    actuators = """
      <actuator>
        <position name="hold" joint="shoulder" kp="10"/>
        <motor name="push" joint="elbow" ctrllimited="true" ctrlrange="-3 5"/>
        <velocity name="grip" joint="finger" kv="2" ctrllimited="true" ctrlrange="-.1 .1"/>
        <motor name="pull" joint="elbow" forcelimited="true" forcerange="-7 7"/>
      </actuator>"""
    mjcf.write_text(ARM.replace("</mujoco>", f"{actuators}</mujoco>"))
    found = {b.actuators: (b.kind, b.scale, b.offset) for b in examine(mjcf).blocks.values()}
    assert found == {
        ("hold",): ("position", 0.5, "home"),
        ("push",): ("effort", 4.0, 1.0),
        ("grip",): ("velocity", 0.1, 0.0),
        ("pull",): ("effort", 7.0, 0.0),
    }


def test_an_arm_with_a_free_cube_is_not_treated_as_a_floating_base(tmp_path: Path) -> None:
    mjcf = tmp_path / "arm.xml"
    cube = '<body pos="1 0 1"><freejoint/><geom type="box" size=".03 .03 .03"/></body>'
    mjcf.write_text(ARM.replace("</worldbody>", f"{cube}</worldbody>"))
    robot = examine(mjcf)
    assert robot.base is None
    assert robot.joints == ("shoulder", "elbow", "finger")


def test_generated_motors_hold_an_arm_against_gravity(tmp_path: Path) -> None:
    mjcf = tmp_path / "arm.xml"
    mjcf.write_text(ARM)
    robot = examine(mjcf)
    motors = {
        name: ActuatorConfig(joints=m.joints, stiffness=m.stiffness, damping=m.damping, effort_limit=m.effort_limit)
        for name, m in robot.motors.items()
    }
    model = build_model(SimConfig(model=str(mjcf), actuators=motors, njmax=0, nconmax=0))
    assert model.nu == 3
    data = mujoco.MjData(model)
    while data.time < 3:
        mujoco.mj_step(model, data)
    assert np.abs(data.qvel).max() < 1e-3
    assert np.abs(data.qpos[:2]).max() < 0.5
    assert np.abs(data.qpos[0]) > 0.02, "the arm has weight"


@pytest.mark.slow
def test_a_robot_below_the_ground_is_lifted_onto_it(tmp_path: Path) -> None:
    robot = examine(write_dog(tmp_path))
    assert robot.base is not None
    assert robot.base.rise_m == pytest.approx(0.25 - 0.2, abs=1e-3)
    assert robot.lacks.ground
    assert robot.lacks.camera == "track"
    assert robot.lacks.joint_names == {0: "root", 1: "front", 2: "joint"}
    assert robot.keyframe == "home"


def test_relative_paths_of_files_are_kept_and_absolute_ones_unchanged(tmp_path: Path) -> None:
    mjcf = write_dog(tmp_path / "robots" / "dog")
    away = tmp_path / "away.obj"
    away.write_text(CUBE)
    moved = mjcf.with_name("nested") / "dog.xml"
    moved.parent.mkdir()
    text = DOG.replace('meshdir="meshes"', 'meshdir="../meshes"').replace("parts/", "../parts/")
    moved.write_text(text.replace("<worldbody>", f'<asset><mesh name="away" file="{away}"/></asset><worldbody>'))
    files = find_files(moved)
    assert files.apart == [away]
    assert copy_files(files, tmp_path / "copy") == "nested/dog.xml"
    copied = {str(f.relative_to(tmp_path / "copy")) for f in (tmp_path / "copy").rglob("*") if f.is_file()}
    assert copied == {"nested/dog.xml", "parts/assets.xml", "meshes/deep/trunk.obj"}
    assert mujoco.MjModel.from_xml_path(str(tmp_path / "copy" / "nested" / "dog.xml")).nmesh == 2


# Files that new-task refuses

NO_XML = "robot: a dog"
URDF = "<robot name='dog'><link name='trunk'/></robot>"
NO_JOINT = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
NO_MESH = DOG.replace("deep/trunk", "deep/gone")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "--mjcf robot.xml"),
        (["my-robot"], "--mjcf: "),
        (["my-robot", "--mjcf", "gone.xml"], "--mjcf gone.xml: "),
        (["My Robot", "--mjcf", "dog.xml"], "My Robot: "),
        (["3d", "--mjcf", "dog.xml"], "3d: "),
        (["class", "--mjcf", "dog.xml"], "class: "),
        (["cartpole-balance", "--mjcf", "dog.xml"], "cartpole-balance: "),
        (["numpy", "--mjcf", "dog.xml"], "numpy: a Python module numpy "),
        (["there", "--mjcf", "dog.xml"], "there: there "),
        (["my-robot", "--mjcf", "joint.xml", "--dir", "gone"], "--mjcf joint.xml: "),
        (["my-robot", "--mjcf", "no.xml"], "no.xml: is not XML: "),
        (["my-robot", "--mjcf", "urdf.xml"], "has no hinge or slide joint"),
        (["my-robot", "--mjcf", "joint.xml"], "--mjcf joint.xml: "),
        (["my-robot", "--mjcf", "mesh.xml"], "Error opening file"),
    ],
)
def test_invalid_input_is_refused_in_one_line_and_leaves_no_files(command: Command, args: list[str], says: str) -> None:
    write_dog(command.cwd)
    (command.cwd / "parts" / "gone.xml").write_text(ASSETS_OF_DOG.replace("trunk.obj", "gone.obj"))
    texts = {
        "no.xml": NO_XML,
        "urdf.xml": URDF,
        "joint.xml": NO_JOINT,
        "mesh.xml": DOG.replace("assets.xml", "gone.xml"),
    }
    for name, text in texts.items():
        (command.cwd / name).write_text(text)
    (command.cwd / "there").mkdir()
    before = sorted(command.cwd.rglob("*"))
    done = command.here(*NEW_TASK, *args)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert all(line.startswith("Reading ") for line in done.out.splitlines())
    assert sorted(command.cwd.rglob("*")) == before


@pytest.mark.slow
def test_a_task_that_fails_its_trial_is_not_ready_and_keeps_its_files(command: Command) -> None:
    actuator = '<actuator><velocity name="wild" joint="elbow" kv="-1e5"/></actuator>'
    (command.cwd / "arm.xml").write_text(ARM.replace("</mujoco>", f"{actuator}</mujoco>"))
    done = command.here(*NEW_TASK, "my-arm", "--mjcf", "arm.xml")
    assert done.code == 1
    (line,) = done.err.splitlines()
    assert line.startswith("mjlab-dist new-task: my-arm is not ready: ")
    assert "joint elbow at " in line
    assert line.endswith("; its files are in my_arm/my_arm")
    assert done.out.splitlines()[-3:] == [
        "After a change, check the task with:",
        "  uv pip install -e my_arm",
        "  mjlab-dist check my-arm",
    ]
    kept = {path.name for path in (command.cwd / "my_arm" / "my_arm").iterdir()}
    assert kept == {"__init__.py", "arm.xml", "config.py", "model.py", "terms.py"}
    assert not (command.cwd / "MUJOCO_LOG.TXT").exists()


@pytest.mark.slow
def test_a_checkout_is_unchanged_if_a_task_cannot_be_registered(command: Command, checkout: Path) -> None:
    env = in_checkout(command, checkout)
    project = checkout / "pyproject.toml"
    text = project.read_text()
    project.write_text(text.replace("mjlab_dist.tasks", "other.tasks"))

    def files() -> list[Path]:
        return sorted(path for path in (checkout / "tasks").rglob("*") if "__pycache__" not in path.parts)

    before = files()
    try:
        done = command(*NEW_TASK, "unregistered", "--mjcf", str(TEMPLATE / "robot.xml"), env=env)
    finally:
        project.write_text(text)
    assert done.code == 2
    assert '[project.entry-points."mjlab_dist.tasks"]' in done.err
    assert files() == before


# Statements in the guide


@pytest.mark.slow
def test_the_terms_of_the_guide_work_and_never_wait() -> None:
    guide = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("add-a-task", "task-reference"))
    blocks = re.findall(r"```python\n# my_ant/terms.py\n(.*?)```", guide, re.DOTALL)
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    start_warp("cpu")
    env = Env(registry.task_config("template").env, 8, "cpu")
    change = names["VelocityChange"](env, joints=("rear_.*",))
    before = env.sim.qvel[:, 8:10].clone()
    with HostSyncs() as syncs:
        env.sim.qvel.add_(torch.randn_like(env.sim.qvel))
        bent = names["knees_bent"](env, joint="front_left", min_rad=-0.05)
        turned = names["turning"](env)
        changed = change(env)
        change.reset(torch.ones(8, dtype=torch.bool))
    assert syncs.found == []
    assert torch.equal(bent, (env.sim.qpos[:, 7] + 0.05).clamp_min(0.0))
    torch.testing.assert_close(turned, env.sim.qvel[:, 5].square())
    torch.testing.assert_close(changed, (env.sim.qvel[:, 8:10] - before).square().sum(dim=1))
    assert torch.equal(change(env), torch.zeros(8))


@pytest.mark.slow
def test_a_robot_is_found_by_its_name(command: Command) -> None:
    robots = command.cwd / "robots" / "boxes"
    robots.mkdir(parents=True)
    shutil.copy(TEMPLATE / "robot.xml", robots / "box_dog.xml")
    done = command.here(*NEW_TASK, "found", "--robot", "box-dog", "--robots-dir", "robots")
    assert done.code == 0, done.err
    assert (command.cwd / "found" / "found" / "box_dog.xml").is_file()


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--mjcf", "a.xml", "--robot", "go2"),
        ("--mjcf", "a.xml", "--robots-dir", "."),
        ("--robot", "go2", "--robots-dir", "none"),
    ],
    ids=str,
)
def test_a_robot_is_named_in_one_way(command: Command, flags: tuple[str, ...]) -> None:
    done = command.here(*NEW_TASK, "unnamed", *flags)
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert not (command.cwd / "unnamed").exists()
