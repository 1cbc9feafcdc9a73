"""requirements.lock contains a version and hashes of every package, and no download addresses."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("lock")


@pytest.fixture
def locked(script: ModuleType) -> dict[NormalizedName, Requirement]:
    lines = re.findall(r"^([a-z0-9].*?) \\$", script.PAGE.read_text(), re.MULTILINE)
    return {canonicalize_name(one.name): one for one in map(Requirement, lines)}


def test_every_package_has_hashes_and_no_address(script: ModuleType) -> None:
    text = script.PAGE.read_text()
    assert script.REQUIREMENT.sub("", text.removeprefix(script.HEAD)) == ""
    assert "://" not in text


def test_all_dependencies_are_locked(locked: dict[NormalizedName, Requirement]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [
        project["project"]["dependencies"],
        project["build-system"]["requires"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    lines = [line for part in parts for line in part if isinstance(line, str)]  # an include-group is a dict
    for requirement in map(Requirement, lines):
        if requirement.name == "mjlab-dist":  # its extras, in a group
            continue
        (version,) = locked[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(version.version), requirement


def test_the_installed_versions_match_the_lock(locked: dict[NormalizedName, Requirement]) -> None:
    needed = {name: one for name, one in locked.items() if one.marker is None or one.marker.evaluate()}
    installed = {canonicalize_name(one.name): one.version for one in metadata.distributions()}
    assert len(needed.keys() & installed.keys()) > 100
    others = [one for name, one in needed.items() if name in installed and installed[name] not in one.specifier]
    assert others == [], "run uv sync --group dev; after a change of pyproject.toml also: uv run python scripts/lock.py"


def test_a_package_without_a_hash_or_with_an_address_is_refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ("numpy==2.0.0", "numpy @ https://localhost/numpy.whl \\\n    --hash=sha256:" + "0" * 64):
        monkeypatch.setattr(script, "COMMAND", (sys.executable, "-c", f"print({line!r})"))
        with pytest.raises(ValueError, match="numpy"):
            script.page()
