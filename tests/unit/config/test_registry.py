"""Tasks that packages declare by entry points: names, summaries, similar names, and broken packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjlab_dist.config import TrainConfig, registry
from mjlab_dist.errors import UserError


def install(directory: Path, package: str, points: dict[str, str]) -> None:
    """Write a fake distribution with tasks. To install it, add the directory to sys.path."""
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{registry.GROUP}]", *lines, ""]))


def refusal_of(name: str) -> str:
    with pytest.raises(UserError) as caught:
        registry.task_config(name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_names_are_sorted_and_summaries_differ():
    names = registry.task_names()
    assert names == sorted(names)
    assert {"cartpole-balance", "cartpole-swingup"} <= set(names)
    summaries = list(registry.task_summaries().values())
    assert len(set(summaries)) == len(summaries)


@pytest.mark.parametrize("name", registry.task_names())
def test_a_task_has_a_config_with_its_name_and_a_summary(name: str):
    config = registry.task_config(name)
    assert isinstance(config, TrainConfig)
    assert config.task == name
    summary = registry.task_summaries()[name]
    assert summary
    assert "\n" not in summary
    assert not summary.startswith("(broken")


@pytest.mark.parametrize(("typed", "meant"), [("cartpole_swingup", "cartpole-swingup"), ("zzzzzzzz", "list-tasks")])
def test_an_unknown_task_is_refused_with_the_nearest_name_or_the_command_that_lists_tasks(typed: str, meant: str):
    name, _, suggestion = refusal_of(typed).partition(": ")
    assert name.endswith(f" {typed}")
    assert meant in suggestion


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("absent", None),
        ("syntax", "def task(:\n"),
        ("nameless", ""),
        ("wordy", "raise RuntimeError('first line\\nsecond line')\n"),
    ],
)
def test_a_broken_package_leaves_the_other_tasks_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str | None
):
    module = f"fake_tasks_{module}"
    install(tmp_path, module, {"broken-task": f"{module}:task"})
    if text is not None:
        (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    assert {"broken-task", "cartpole-balance"} <= set(registry.task_names())
    assert module not in registry.task_summaries()["cartpole-balance"]
    assert registry.task_config("cartpole-balance").task == "cartpole-balance"
    summary = registry.task_summaries()["broken-task"]
    assert module in summary
    assert "\n" not in summary
    message = refusal_of("broken-task")
    assert "broken-task: " in message
    assert f"{module}:task" in message


def test_listing_names_imports_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "fake_tasks_marking", {"marking-task": "fake_tasks_marking:task"})
    (tmp_path / "fake_tasks_marking.py").write_text("import pathlib\npathlib.Path(__file__ + '.ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "marking-task" in registry.task_names()
    assert not (tmp_path / "fake_tasks_marking.py.ran").exists()


def test_a_third_party_task_is_found_under_its_registered_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, "fake_tasks_good", {"good-task": "fake_tasks_good:task"})
    (tmp_path / "fake_tasks_good.py").write_text(
        "from mjlab_dist.config import registry\n"
        "def task():\n"
        '    """What it is.\n\n    More about it.\n    """\n'
        '    return registry.task_config("cartpole-balance")\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.task_config("good-task").task == "good-task"
    assert registry.task_summaries()["good-task"] == "What it is."


def test_a_name_registered_by_two_packages_is_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for package in ("fake_tasks_one", "fake_tasks_two"):
        install(tmp_path / package, package, {"twice": f"{package}:task"})
        monkeypatch.syspath_prepend(tmp_path / package)
    message = refusal_of("twice")
    assert "fake_tasks_one:task" in message
    assert "fake_tasks_two:task" in message
    assert registry.task_names().count("twice") == 1
