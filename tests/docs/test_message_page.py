"""The file tests/data/messages.txt lists all messages. Other tests check only parts of messages."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "messages.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


@pytest.mark.slow
def test_the_page_has_the_messages_of_the_source(script: ModuleType) -> None:
    page = script.PAGE.read_text().splitlines()
    source = script.page().splitlines()
    command = "to accept the new wording, run: uv run python scripts/messages.py"
    assert [line for line in source if line not in page] == [], command
    assert [line for line in page if line not in source] == [], command
    assert source == page, f"in another order; {command}"


@pytest.mark.slow
def test_the_check_fails_for_another_wording_and_names_the_command(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "messages.txt"
    other.write_text(script.PAGE.read_text().replace("must be at least", "is less than"))
    monkeypatch.setattr(sys, "argv", ["messages.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        script.write_or_check(other, script.page())
    assert "uv run python scripts/messages.py" in str(ended.value.code)
    monkeypatch.setattr(sys, "argv", ["messages.py"])
    script.write_or_check(other, script.page())
    assert other.read_text() == script.page()


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ('raise UserError(f"--seed {config.seed}: is odd")', ["UserError: --seed {seed}: is odd"]),
        ('raise UserError("one " + first if bad else "two")', ["UserError: one {first}", "UserError: two"]),
        ('raise UserError(_why(3, f"no {name} here"))', ["UserError: {_why}", "part: no {name} here"]),
        ("emit(\"warning\", text=f\"{n} left{'' if n else ' over'}\")", ["warning: {n} left{| over}"]),
        ('listen({"kind": "status", "text": "started"})', ["status: started"]),
        ('print(f"{byte_size(free)} of {listed(names)}")', ["print: {free} of {names}"]),
        ('Finding(name="disk", figure=f"{free} free", fix="make room")', ["finding: disk: {free} free; make room"]),
        ('return f"two words: {value}"', ["part: two words: {value}"]),
        ('return "word"', []),
        ('"""Docstring of a module."""', []),
        ('assert a, "never shown to users"', []),
    ],
)
def test_messages_are_found_in_the_source(script: ModuleType, source: str, messages: list[str]) -> None:
    module = script.Collector("module.py")
    assert [f"{kind}: {text}" for kind, text in module.messages(script.ast.parse(source))] == messages
