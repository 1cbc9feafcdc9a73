"""Errors in a user's code are reported in one line: exception, message, and the file and line that raised it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from configs import changed
from every_task import config_of

from mjlab_dist.authoring.check.run_checks import check
from mjlab_dist.config import RewardConfig, SimConfig, registry
from mjlab_dist.errors import UserError, describe, place_of, with_notes
from mjlab_dist.sim import build_model

CODE = """import mujoco


def robot():
    legs = {}
    return legs["front"]


def gone():
    return mujoco.MjSpec.from_file("gone.xml")


def task():
    raise RuntimeError("no\\nrobot")


def fails(env):
    return env.sim.qpos @ env.sim.qpos


class Fails:
    def __init__(self, env):
        raise LookupError("no leg")
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "users_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "code.py").write_text(CODE)
    (folder / "broken.py").write_text("\nimport package_that_does_not_exist\n")
    (folder / "misspelled.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "users_package"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("model", "what"),
    [
        ("code:robot", "KeyError: 'front' (users_package/code.py:6)"),
        ("code:gone", "ValueError: ParseXML: Error opening file 'gone.xml' (users_package/code.py:10)"),
        ("broken:f", "ModuleNotFoundError: No module named 'package_that_does_not_exist' (users_package/broken.py:2)"),
        ("misspelled:f", "SyntaxError: invalid syntax (users_package/misspelled.py:1)"),
    ],
)
def test_an_error_in_a_model_function_names_its_line(model: str, what: str) -> None:
    with pytest.raises(UserError) as info:
        build_model(SimConfig(model=f"users_package.{model}", njmax=0, nconmax=0))
    assert str(info.value) == f"--env.sim.model users_package.{model}: {what}"


@pytest.mark.parametrize("model", ["code:nothing", "nothing:robot"])
def test_a_wrong_name_of_a_model_function_is_a_wrong_flag(model: str) -> None:
    with pytest.raises(UserError, match=r"write package.module:file or package.module:function$"):
        build_model(SimConfig(model=f"users_package.{model}", njmax=0, nconmax=0))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("code:task", "its config cannot be created: RuntimeError: no robot (users_package/code.py:14)"),
        ("broken:task", "users_package.broken:task cannot be imported: ModuleNotFoundError: .*broken.py:2"),
    ],
)
def test_an_error_in_a_task_function_names_its_line(monkeypatch: pytest.MonkeyPatch, value: str, what: str) -> None:
    point = EntryPoint("broken", f"users_package.{value}", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]))  # noqa: ARG005
    with pytest.raises(UserError) as info:
        registry.task_config("broken")
    assert str(info.value).startswith("task broken: ")
    assert what.partition(".*")[0] in str(info.value)
    assert what.rpartition(".*")[2] in str(info.value)


@pytest.mark.parametrize(
    ("func", "what"),
    [
        ("code:Fails", "LookupError: no leg, in the term env.rewards.wrong (users_package/code.py:23)"),
        ("broken:f", "No module named 'package_that_does_not_exist' (users_package/broken.py:2)"),
    ],
)
def test_an_error_in_a_term_names_the_term_and_its_line(func: str, what: str) -> None:
    term = RewardConfig(func=f"users_package.{func}", weight=1.0)
    config = changed(config_of("cartpole-balance"), "env.rewards.wrong", term)
    (result,) = check(changed(changed(config, "num_envs", 2), "total_num_envs", None))
    assert result.text.endswith(what)


def test_the_place_is_the_innermost_line_of_the_package() -> None:
    with pytest.raises(AttributeError) as info:
        pytest.importorskip("users_package.code").fails(None)
    assert place_of(info.value, "users_package.code:fails") == "users_package/code.py:18"
    assert place_of(info.value, "another_package:fails") == ""
    assert describe(info.value, "users_package").endswith("'sim' (users_package/code.py:18)")


def test_an_error_without_a_message_is_named_by_its_type():
    assert describe(AssertionError(), "users_package:f") == "AssertionError"
    error = ValueError()
    error.add_note("in env.rewards.smooth")
    assert with_notes(error) == "in env.rewards.smooth"
