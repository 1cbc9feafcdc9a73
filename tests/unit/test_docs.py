"""Documentation that is generated from the source is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_all_terms_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "terms_table.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_term_of_the_package_is_described() -> None:
    text = (ROOT / "docs" / "terms.md").read_text()
    entries = [line for line in text.splitlines() if line.startswith("- **`")]
    assert len(entries) > 60
    assert not [line for line in entries if line.endswith("**:")], "a term without a docstring"
