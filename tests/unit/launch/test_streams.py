"""Commands continue if their standard streams are closed or nobody reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PRINTS_AND_ENDS = """
import os, socket, sys
from mjlab_dist.launch.output import keep_streams_usable
keep_streams_usable()
sockets = [socket.socket() for _ in range(3)]
for _ in range(100):
    print("x" * 1000, flush=True)
    print("x" * 1000, file=sys.stderr)
os.mkdir("done")
sys.exit(7 if any(s.fileno() < 3 for s in sockets) else 3)
"""


@pytest.mark.parametrize(
    "redirection",
    ["| true", "2>&1 | true", ">/dev/full", "2>/dev/full", ">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/null"],
)
def test_a_program_continues_without_its_output(redirection: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS_AND_ENDS)
    script = f"{sys.executable} {program} {redirection}"
    code = "${PIPESTATUS[0]}"
    done = subprocess.run(
        ["bash", "-c", f"{script}; exit {code}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert (tmp_path / "done").is_dir()
    assert "Error" not in done.stderr


def test_output_that_is_read_arrives_unchanged(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PRINTS_AND_ENDS)
    done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == done.stderr == ("x" * 1000 + "\n") * 100
