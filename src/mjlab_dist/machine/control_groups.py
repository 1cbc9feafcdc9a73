"""Limits that Linux control groups (a container's, a SLURM job's) put on this process."""

from __future__ import annotations

import math
import re
from pathlib import Path


def cpu_quota(root: Path) -> float:
    """Cores whose time this process may take, by the tightest of its control groups; infinite without a quota.

    Args:
        root: Where the system's files are.
    """
    quotas = [math.inf]
    for group in _control_groups("cpu", root):
        version_1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
        limited = re.fullmatch(r"(\d+) (\d+)", _read(group / "cpu.max") or version_1)
        if limited:
            quotas.append(int(limited[1]) / int(limited[2]))
    return min(quotas)


def memory_room(root: Path) -> float:
    """Bytes that the tightest of this process's control groups leaves it; infinite without a limit.

    Args:
        root: Where the system's files are.
    """
    rooms = [math.inf]
    for group in _control_groups("memory", root):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # The kernel drops what it keeps of files before it refuses memory. Version 1 counts subgroups apart, as total.
            kept = re.findall(r"^(?:total_)?inactive_file (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
            rooms.append(int(limit) - int(used) + max(map(int, kept), default=0))
    return min(rooms)


def _control_groups(controller: str, root: Path) -> list[Path]:
    """Directories of the control groups, of version 1 or 2, that bound this process."""
    groups: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = mount / path.lstrip(
            "/"
        )  # in a container it may be the path outside: its own group is then the mount's root
        groups += [group for group in (own, *own.parents) if group.is_relative_to(mount)]
    return groups


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
