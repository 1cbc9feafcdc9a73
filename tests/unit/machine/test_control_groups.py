"""Memory that control groups still allow. test_preflight.py tests both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from mjlab_dist.machine.control_groups import memory_room


def write_membership(root: Path, lines: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)


def group(directory: Path, limit: str, used: int, inactive_file: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


@pytest.mark.parametrize(
    ("job", "step", "left"),
    [
        ("1000", "max", 1000 - 300 + 50),
        ("max", "700", 700 - 300 + 50),
        ("max", "max", float("inf")),
        ("500", "800", 250),
    ],
)
def test_the_smallest_control_group_limit_applies(tmp_path: Path, job: str, step: str, left: float):
    write_membership(tmp_path, "1:name=systemd:/\n0::/job/step\n")
    group(tmp_path / "sys/fs/cgroup/job", job, 300, 50)
    group(tmp_path / "sys/fs/cgroup/job/step", step, 300, 50)
    assert memory_room(tmp_path) == left


def test_without_control_groups_there_is_no_limit(tmp_path: Path):
    assert memory_room(tmp_path) == float("inf")
    write_membership(tmp_path, "4:memory:/a\n")
    assert memory_room(tmp_path) == float("inf")
