"""The architecture page names files that exist. Modules and functions are short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

MAX_MODULE_LINES = 450

MAX_FUNCTION_LINES = 60


def test_every_behaviour_is_in_a_file_that_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.partition("## Where is")[2].partition("\n## ")[0], re.MULTILINE)
    named = {what: re.findall(r"`([\w/]+\.py)`", files) for what, files in rows[1:]}
    assert len(named) >= 25
    for what, files in named.items():
        assert files, what
        assert not [file for file in files if not (ROOT / "src" / "mjlab_dist" / file).is_file()], what


def test_modules_and_functions_are_short() -> None:
    files = [file for folder in ("src", "scripts", "tasks") for file in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    too_long: list[str] = []
    for file in files:
        text, name = file.read_text(), file.relative_to(ROOT)
        num_lines = len(text.splitlines())
        if num_lines > MAX_MODULE_LINES:
            too_long.append(f"{name}: {num_lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                num_lines = node.end_lineno - node.lineno + 1
                if num_lines > MAX_FUNCTION_LINES:
                    too_long.append(f"{name}:{node.lineno} {node.name}: {num_lines} lines")
    assert not too_long
