"""Documentation that is generated from the source is up to date."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mjlab_dist import mdp

ROOT = Path(__file__).parents[2]

NO_TERMS = {"motion_file", "rotation"}
"""Modules of ``mjlab_dist.mdp`` that have no terms."""


def test_the_page_of_all_terms_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "terms_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", sorted({each.name for each in pkgutil.iter_modules(mdp.__path__)} - NO_TERMS))
def test_the_page_has_every_term_with_a_description(module: str) -> None:
    page = " ".join((ROOT / "docs" / "terms.md").read_text().split())
    found = importlib.import_module(f"mjlab_dist.mdp.{module}")
    names = [
        name
        for name, value in vars(found).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == found.__name__
        and not name.startswith("_")
    ]
    assert names
    assert not [name for name in names if not re.search(rf"- \*\*`{name}`\*\*: \w", page)]
