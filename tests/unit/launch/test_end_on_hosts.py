"""What a launch left on a host is removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mjlab_dist.launch.hosts import END, program
from mjlab_dist.machine.processes import TEMPORARY


def test_temporary_directories_are_removed_from_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "with [brackets]"
    left, other = folder / f"{TEMPORARY}one-a", folder / f"{TEMPORARY}two-a"
    for each in (left, other):
        each.mkdir(parents=True)
    command = program(END, "MJLAB_DIST_OF_THIS_TEST=one", TEMPORARY)
    subprocess.run(command, shell=True, check=True, env=os.environ | {"TMPDIR": str(folder)})
    assert not left.exists()
    assert other.exists()
