"""Temporary directories of launches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mjlab_dist.machine.processes import TEMPORARY, remove_leftovers, temporary_directory


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(path: Path) -> None:
    os.utime(path, (0, 0))


def test_a_launch_leaves_no_temporary_directory(directory: Path):
    with temporary_directory() as path:
        assert Path(path).parent == directory
        (Path(path) / "torchrunx").mkdir()
    assert not list(directory.iterdir())


def test_only_directories_of_killed_launches_are_removed(directory: Path):
    left, young, foreign = (directory / name for name in (f"{TEMPORARY}1-x", f"{TEMPORARY}2-x", "somebody-elses"))
    for path in (left, young, foreign):
        path.mkdir()
        (path / "file").touch()
    age(left)
    age(foreign)
    with temporary_directory() as path:
        age(Path(path))
        remove_leftovers()
        assert {p.name for p in directory.iterdir()} == {young.name, foreign.name, Path(path).name}
