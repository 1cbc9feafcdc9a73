"""Parameters of terms, read from source code, equal those of the imported functions and classes."""

from __future__ import annotations

import inspect
import math
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mjlab_dist.mdp
from mjlab_dist.config.signatures import REQUIRED, parameters
from mjlab_dist.config.terms import name_of
from mjlab_dist.env.term import Term


def public_terms() -> list[Callable[..., Any]]:
    modules = [import_module(f"mjlab_dist.mdp.{one.name}") for one in pkgutil.iter_modules(mjlab_dist.mdp.__path__)]
    return [
        value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, Term))
        if value.__module__ == module.__name__ and not name.startswith("_")
    ]


def test_parameters_from_source_equal_those_of_the_imported_term() -> None:
    checked = 0
    for term in public_terms():
        signature = inspect.signature(term).parameters
        expected = {
            name: one.default for name, one in signature.items() if name not in ("self", "env", "mask", "block")
        }
        found = parameters(name_of(term))
        assert {name: one.default for name, one in found.items()} == expected, term
        checked += len(expected)
    assert checked > 100


def test_meanings_come_from_the_docstring() -> None:
    found = parameters("mjlab_dist.mdp.commands:Velocity")
    assert "yaw rate" in found["heading_gain"].text.lower()
    assert "\n" not in found["heading_gain"].text
    assert found["forward_m_s"].default is REQUIRED


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with modules that raise when they are imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "heavy_base.py").write_text(
        "raise ImportError\nclass Base:\n    def __init__(self, env, *, gain: float = 2.0): pass\n"
    )
    (tmp_path / "heavy_terms.py").write_text(
        "raise ImportError\n"
        "from heavy_base import Base as Above\n"
        "class Own(Above): pass\n"
        "def limited(env, mask, low: float | None = None, names: tuple[str, ...] = ()): pass\n"
        "def bounded(env, low: float = -math.inf, high: float = math.inf): pass\n"
    )
    return tmp_path


@pytest.mark.usefixtures("package")
def test_nothing_is_imported_and_bases_are_followed() -> None:
    assert {name: one.default for name, one in parameters("heavy_terms:Own").items()} == {"gain": 2.0}
    found = parameters("heavy_terms:limited")
    assert list(found) == ["low", "names"]
    assert found["low"].can_be_none
    assert not found["names"].can_be_none
    bounds = parameters("heavy_terms:bounded")
    assert {name: one.default for name, one in bounds.items()} == {"low": -math.inf, "high": math.inf}


def test_relative_imports_and_packages_without_init_are_followed(package: Path) -> None:
    folder = package / "heavy_names" / "of_robots"
    folder.mkdir(parents=True)
    (folder / "base.py").write_text("raise ImportError\ndef slip(env, limit: float = 2.0): pass\n")
    (folder / "terms.py").write_text("from .base import slip\nfrom ....far import beyond\n")
    assert parameters("heavy_names.of_robots.terms:slip")["limit"].default == 2.0
    assert parameters("heavy_names.of_robots.terms:beyond") == {}
    assert parameters("heavy_names.of_ships.terms:slip") == {}


@pytest.mark.parametrize("reference", ["no_such_module:f", "heavy_terms:no_such_name", "math:cos", "", "json"])
@pytest.mark.usefixtures("package")
def test_what_cannot_be_read_has_no_parameters(reference: str) -> None:
    assert parameters(reference) == {}
