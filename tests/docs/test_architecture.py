"""The architecture page names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_behaviour_is_in_a_file_that_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.partition("## Where is")[2].partition("\n## ")[0], re.MULTILINE)
    named = {what: re.findall(r"`([\w/]+\.py)`", files) for what, files in rows[1:]}
    assert len(named) >= 25
    for what, files in named.items():
        assert files, what
        assert not [file for file in files if not (ROOT / "src" / "mjlab_dist" / file).is_file()], what
