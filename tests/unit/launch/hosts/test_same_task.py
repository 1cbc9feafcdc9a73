"""Ranks on several machines detect that files of their task differ between machines."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import mujoco
import pytest
from torch._C._distributed_c10d import HashStore

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.config.dotted_names import replaced
from mjlab_dist.distributed.rank import Rank
from mjlab_dist.launch.hosts.same_task import TaskSummary, check_same_task
from mjlab_dist.sim import build_model

XML = """
<mujoco>
  <worldbody>
    <body name="pole"><joint name="hinge" damping="{damping}"/><geom size="0.1 0.1 {length}" type="box"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def config() -> TrainConfig:
    return registry.task_config("cartpole-balance")


def compiled(damping: float = 0.1, length: float = 0.5) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML.format(damping=damping, length=length))


def module(file: Path, text: str) -> types.ModuleType:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    made = types.ModuleType(file.stem)
    made.__file__ = str(file)
    return made


def test_equal_tasks_have_equal_digests(config: TrainConfig) -> None:
    own, other = (TaskSummary.of(config, build_model(config.env.sim), dict(sys.modules)) for _ in range(2))
    assert own.digest() == other.digest()
    assert own.difference(other) is None


@pytest.mark.parametrize(("changed", "field"), [({"damping": 0.2}, "dof_damping"), ({"length": 0.51}, "body_mass")])
def test_another_model_is_found(config: TrainConfig, changed: dict[str, float], field: str) -> None:
    own, other = (TaskSummary.of(config, model, {}) for model in (compiled(), compiled(**changed)))
    assert field in (own.difference(other) or "")


def test_another_name_of_a_joint_is_found(config: TrainConfig) -> None:
    renamed = mujoco.MjModel.from_xml_string(XML.format(damping=0.1, length=0.5).replace("hinge", "pivot"))
    own, other = (TaskSummary.of(config, model, {}) for model in (compiled(), renamed))
    assert "names" in (own.difference(other) or "")


def test_rounding_is_no_difference(config: TrainConfig) -> None:
    rounded = compiled()
    rounded.body_mass[1] *= 1 + 1e-14
    rounded.body_iquat[1] = [0, 1, 0, 0]  # the same inertia, described with other principal axes
    own, other = (TaskSummary.of(config, model, {}) for model in (compiled(), rounded))
    assert own.difference(other) is None
    rounded.opt.gravity[0] = rounded.jnt_range[0, 0] = float("inf")
    own = TaskSummary.of(config, rounded, {})
    assert own.difference(own) is None


def test_another_source_file_is_found(config: TrainConfig, tmp_path: Path) -> None:
    ours = module(tmp_path / "here" / "rewards.py", "WEIGHT = 1.0")
    theirs = module(tmp_path / "there" / "rewards.py", "WEIGHT = 1.5")
    own, other = (TaskSummary.of(config, compiled(), {"rewards": each}) for each in (ours, theirs))
    assert "rewards" in (own.difference(other) or "")
    # Modules that only one rank has imported are not compared
    assert own.difference(TaskSummary.of(config, compiled(), {})) is None


@pytest.mark.parametrize("field", ["agent.symmetry.func", "sync.synchronizer"])
def test_functions_that_are_imported_later_are_compared(
    config: TrainConfig, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"named_by_{field.replace('.', '_')}"
    (tmp_path / f"{name}.py").write_text("def f(env, obs, actions): ...")
    monkeypatch.syspath_prepend(tmp_path)
    run = replaced(config, field.split("."), f"{name}:f")
    compared: dict[str, Any] = {}

    def summarize(_config: TrainConfig, _model: mujoco.MjModel, modules: dict[str, types.ModuleType]) -> TaskSummary:
        compared.update(modules)
        return TaskSummary(files={}, model={})

    monkeypatch.setattr(TaskSummary, "of", summarize)
    check_same_task(HashStore(), Rank(on_one_machine=False), ["here"], run, compiled())
    assert name in compared


def test_files_of_installed_packages_and_of_the_machine_are_left_out(config: TrainConfig, tmp_path: Path) -> None:
    modules = {**sys.modules, "sitecustomize": module(tmp_path / "sitecustomize.py", "")}
    found = TaskSummary.of(config, compiled(), modules).files
    assert __name__ in found
    assert not {"json", "mujoco", "torch", "sitecustomize"} & found.keys()


def test_a_data_file_of_the_config_is_compared(config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = replaced(config, ["env", "sim", "model"], "robot.xml")
    summaries: list[TaskSummary] = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "robot.xml").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        summaries.append(TaskSummary.of(config, compiled(), {}))
    assert "robot.xml" in (summaries[0].difference(summaries[1]) or "")
