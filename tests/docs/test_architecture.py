"""The architecture page names folders and files that exist, and every folder of the package."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mjlab_dist"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_every_file_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)`", PAGE)
    assert len(named) >= 10
    assert not [file for file in named if not (PACKAGE / file).is_file() and not (ROOT / file).is_file()]


def test_every_folder_is_described() -> None:
    described = set(re.findall(r"^  (\w+)/ ", PAGE, re.MULTILINE))
    assert described == {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
