"""Imports of the package point down: from the command line to what trains, and from there to its parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mjlab_dist

SRC = Path(mjlab_dist.__file__).parent

ROWS = (
    {"__main__", "gymnasium"},
    {"api"},
    {"cli"},
    {"policies", "authoring", "simulate"},
    {"launch"},
    {"learn"},
    {"mdp"},
    {"env"},
    {"machine"},
    {"runs"},
    {"sim"},
    {"distributed"},
    {"config"},
    {"imports", "messages"},
    {"errors"},
)
"""Folders and modules of the package, from top to bottom. None imports another of its row or of a row above it."""

LEVELS = {room: level for level, row in enumerate(ROWS) for room in row}


def imported_by(file: Path) -> Iterator[str]:
    """Yield the folders and modules that a file imports when it is imported or when its functions run."""
    tree = ast.parse(file.read_text())
    for_types = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (name.split(".")[1] for name in names if name.startswith("mjlab_dist."))


def test_imports_point_down() -> None:
    wrong: list[str] = []
    for file in SRC.rglob("*.py"):
        own = file.relative_to(SRC).parts[0].removesuffix(".py")
        if own != "__init__":
            rooms = set(imported_by(file)) - {own}
            wrong += [f"{file}: {room}" for room in rooms if LEVELS[room] <= LEVELS[own]]
    assert not wrong
