"""Cores and memory that Linux leaves to this process, in a container or a SLURM job, for example."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

ROOT = Path("/")


def cores(root: Path = ROOT) -> int:
    """Return the number of cores that this process may use at the same time; a part of a core does not count."""
    return max(1, int(min(len(os.sched_getaffinity(0)), cpu_quota(root))))


def cpu_quota(root: Path = ROOT) -> float:
    """Return the CPU quota of this process in cores: the smallest quota of its control groups, or infinity if none."""
    quotas = [math.inf]
    for group in _control_groups("cpu", root):
        version_1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        limited = re.fullmatch(r"(\d+) (\d+)", _read(group / "cpu.max") or version_1)
        if limited:
            quotas.append(int(limited[1]) / int(limited[2]))
    return min(quotas)


def memory_room(root: Path = ROOT) -> float:
    """Return the bytes that the control groups of this process still allow it to use; infinity without a limit."""
    rooms = [math.inf]
    for group in _control_groups("memory", root):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # Under memory pressure, the kernel frees inactive file cache first, so this cache counts as available.
            # In version 1, memory.stat also has total_inactive_file, which includes subgroups and is therefore larger.
            kept = re.findall(r"^(?:total_)?inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            rooms.append(int(limit) - int(used) + max(map(int, kept), default=0))
    return min(rooms)


def _control_groups(controller: str, root: Path) -> list[Path]:
    """Return the directories of the control groups (version 1 or 2) that limit this process."""
    groups: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container, `path` may name a group of the host that does not exist in the container. The parents of
        # `own` still include the root of the mount, which is the container's own group.
        own = mount / path.lstrip("/")
        groups += [group for group in (own, *own.parents) if group.is_relative_to(mount)]
    return groups


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
