"""Control groups limit the cores and the memory of this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mjlab_dist.machine import Status, doctor
from mjlab_dist.machine.control_groups import cores, memory_room


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write a machine's files about control groups."""
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


VERSION_1 = "3:cpu,cpuacct:/job/one\n4:memory:/job/one"

QUOTAS = {
    "none": ("0::/job/one", {"job/one/cpu.max": "max 100000"}, None),
    "own group": ("0::/job/one", {"job/one/cpu.max": "50000 100000", "job/cpu.max": "max 100000"}, 0.5),
    "group above": ("0::/job/one", {"job/one/cpu.max": "max 100000", "job/cpu.max": "50000 100000"}, 0.5),
    "inside a container": ("0::/", {"cpu.max": "175000 100000"}, 1.75),
    "version 1": (VERSION_1, {"cpu/job/one/cpu.cfs_quota_us": "50000", "cpu/job/one/cpu.cfs_period_us": "100000"}, 0.5),
    "version 1, no quota": (VERSION_1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
}


@pytest.mark.parametrize("case", QUOTAS)
def test_only_cores_that_a_quota_allows_are_used(tmp_path: Path, case: str):
    groups, files, quota = QUOTAS[case]
    root = system(tmp_path, groups, files)
    assert cores(root) == (len(os.sched_getaffinity(0)) if quota is None else max(1, int(quota)))
    figure = doctor.check_cores(root).figure
    assert figure.startswith(f"{cores(root)} of {os.cpu_count()}")
    assert figure.endswith(f" {quota})") == (quota is not None)


def memory_files(group: str, limit: str, used: int, inactive_file: int) -> dict[str, str]:
    stat = f"anon 1\nfile 2\ninactive_file {inactive_file}\nactive_file 3"
    return {f"{group}/memory.max": limit, f"{group}/memory.current": str(used), f"{group}/memory.stat": stat}


MEMORY = memory_files("job", str(10**10), 9_900_000_000, 10**9)
MEMORY_1 = {
    "memory/job/memory.limit_in_bytes": str(10**10),
    "memory/job/memory.usage_in_bytes": str(9_900_000_000),
    "memory/job/memory.stat": "cache 1\ninactive_file 0\ntotal_inactive_file 1000000000",
}


@pytest.mark.parametrize(("groups", "files"), [("0::/job/one", MEMORY), (VERSION_1, MEMORY_1)], ids=["2", "1"])
def test_little_memory_in_a_control_group_causes_a_warning(tmp_path: Path, groups: str, files: dict[str, str]):
    finding = doctor.check_memory(system(tmp_path, groups, files))
    assert finding.status is Status.WARNING
    assert finding.figure.startswith("1.1 GB "), "inactive file cache counts as available"


def test_too_little_memory_for_a_rank_fails(tmp_path: Path):
    root = system(tmp_path, "0::/job", {**MEMORY, "job/memory.stat": ""})
    assert doctor.check_memory(root).status is Status.FAIL
    assert doctor.check_memory(system(tmp_path, "0::/job", {"job/memory.max": "max"})).status is not Status.FAIL


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
    files = {**memory_files("job", job, 300, 50), **memory_files("job/step", step, 300, 50)}
    assert memory_room(system(tmp_path, "1:name=systemd:/\n0::/job/step", files)) == left


def test_without_control_groups_there_is_no_limit(tmp_path: Path):
    assert memory_room(tmp_path) == float("inf")
    assert memory_room(system(tmp_path, "4:memory:/a", {})) == float("inf")
