"""The trial of a new task: larger buffers, files after an interrupt, errors in the config, and suggested flags."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import mujoco_warp as mjw
import pytest
import warp as wp
from every_task import config_of
from warp._src import context

import mjlab_dist.authoring.new_task as new_task
from mjlab_dist.authoring.check.task_checks import Check, failed
from mjlab_dist.authoring.new_task import create, first_flags, try_task
from mjlab_dist.authoring.new_task.source import Names
from mjlab_dist.config import ActuatorConfig, TrainConfig
from mjlab_dist.sim import start_warp

ARM = """
<mujoco>
  <worldbody>
    <body><joint name="hinge" axis="0 1 0" range="-60 60"/><geom size=".1" pos=".3 0 0"/></body>
  </worldbody>
</mujoco>"""


@pytest.fixture
def arm(tmp_path: Path) -> Path:
    (tmp_path / "arm.xml").write_text(ARM)
    return tmp_path / "arm.xml"


def test_a_robot_is_tried_on_the_cpu_even_if_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, arm: Path) -> None:
    """Replace Warp's default device, which is the first GPU if there is one."""
    start_warp("cpu")
    gpu = copy.copy(wp.get_device("cpu"))
    monkeypatch.setattr(context.runtime, "default_device", gpu)
    put_model, used = mjw.put_model, []

    def watched(*args: Any, **kwargs: Any) -> mjw.Model:
        used.append(wp.get_device())
        return put_model(*args, **kwargs)

    monkeypatch.setattr(mjw, "put_model", watched)
    create("on-the-cpu", arm, arm.parent)
    assert used
    assert all(device is not gpu for device in used)


def test_buffers_that_are_too_small_are_enlarged(monkeypatch: pytest.MonkeyPatch, arm: Path) -> None:
    tried: list[str] = []

    def overflow(names: Names, parent: Path) -> tuple[TrainConfig | None, list[Check]]:
        tried.append((parent / names.module / "config.py").read_text())
        # Both checks fail, because dropped constraints make the physics unstable.
        sizes = {"njmax": 4 * 2 ** len(tried)}
        problems = [failed("physics", "not finite"), dataclasses.replace(failed("buffers", "overflow"), sizes=sizes)]
        return None, problems if len(tried) < 3 else []

    monkeypatch.setattr(new_task, "try_task", overflow)
    made = create("tried-twice", arm, arm.parent)
    sizes = [[line.strip() for line in text.splitlines() if "njmax=" in line] for text in tried]
    assert sizes == [["njmax=4,"], ["njmax=8,"], ["njmax=16,"]]
    assert made.robot.njmax == 16
    assert made.problem == ""


def test_a_task_whose_buffers_never_suffice_is_not_ready(monkeypatch: pytest.MonkeyPatch, arm: Path) -> None:
    short = dataclasses.replace(failed("buffers", "overflow of NEFC"), sizes={"njmax": 8})
    monkeypatch.setattr(new_task, "try_task", lambda *_: (None, [short]))
    assert create("never-enough", arm, arm.parent).problem == "overflow of NEFC"


def test_an_interrupted_trial_leaves_nothing(monkeypatch: pytest.MonkeyPatch, arm: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(new_task, "try_task", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create("interrupted", arm, arm.parent / "made")
    assert list(arm.parent.iterdir()) == [arm]


def test_an_error_in_the_config_is_the_problem(tmp_path: Path) -> None:
    (tmp_path / "wrong_config").mkdir()
    (tmp_path / "wrong_config" / "config.py").write_text("def task():\n    return 1 / 0\n")
    names = Names(task="wrong-config", module="wrong_config", function="task", file="arm.xml")
    config, (problem,) = try_task(names, tmp_path)
    assert config is None
    assert problem == failed("config", "ZeroDivisionError: division by zero (wrong_config/config.py:2)")
    assert [path.name for path in (tmp_path / "wrong_config").iterdir()] == ["config.py"], "no bytecode"


def test_the_flags_to_try_first_have_the_values_of_the_config() -> None:
    config = config_of("template")
    rewards, actions = config.env.rewards, config.env.actions
    assert first_flags(config) == [
        f"--env.rewards.forward.params.max-m-s {rewards['forward'].params['max_m_s']}",
        f"--env.actions.position.scale {actions['position'].scale}",
        f"--env.rewards.effort.weight {rewards['effort'].weight}",
    ]
    legs = ActuatorConfig(joints=(".*",), stiffness=12.0, damping=1.0)
    sim = dataclasses.replace(config.env.sim, actuators={"legs": legs})
    config = dataclasses.replace(config, env=dataclasses.replace(config.env, sim=sim))
    assert first_flags(config)[-1] == "--env.sim.actuators.legs.stiffness 12.0"
