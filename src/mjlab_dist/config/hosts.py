"""Entries of ``--hosts``: a machine, and how many ranks run there. Imports the standard library only."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from mjlab_dist.errors import UserError

# Matches a name, an IPv4 address, or an IPv6 address in brackets; a number of ranks may follow
ENTRY = re.compile(r"(?:(?P<name>\w[\w.-]*)|\[(?P<address>[\w.:]+)\])(?::(?P<num_ranks>\d{1,6}))?")


class HostEntry(NamedTuple):
    """An entry of ``--hosts``."""

    # Name or address, without brackets
    name: str
    # Number of ranks; None for one per device
    num_ranks: int | None


def parse_host(entry: str) -> HostEntry:
    """Read an entry of ``--hosts``, such as ``node7``, ``node7:4`` or ``[fd00::7]:4``.

    Args:
        entry: An entry that has passed :func:`validate_hosts`.
    """
    found = _read(entry)
    assert found is not None
    return found


def _read(entry: str) -> HostEntry | None:
    if _is_ipv6(entry):
        return HostEntry(entry, None)
    match = ENTRY.fullmatch(entry)
    if match is None or (match["address"] and not _is_ipv6(match["address"])):
        return None
    return HostEntry(match["name"] or match["address"], None if match["num_ranks"] is None else int(match["num_ranks"]))


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def validate_hosts(entries: tuple[str, ...], min_hosts: int | None, max_restarts: int) -> None:
    """Raise if ``--hosts`` or ``--min-hosts`` is wrong. The hosts' devices are checked elsewhere.

    Args:
        entries: The value of ``--hosts``.
        min_hosts: The value of ``--min-hosts``.
        max_restarts: The value of ``--max-restarts``.
    """
    shown = " ".join(entries)
    # Each entry by itself
    for entry in entries:
        if _read(entry) is None:
            raise UserError(
                f"--hosts {shown}: {entry!r} is not a host; give a name or an address, and optionally a number of "
                "ranks (node7, node7:4, [fd00::7]:4); separate hosts by spaces, and set users and ports in SSH's "
                "config file"
            )
        if parse_host(entry).num_ranks == 0:
            raise UserError(f"--hosts {shown}: {entry} has no ranks; drop the host, or give it 1 or more")
    # Repetitions
    names = [parse_host(entry).name for entry in entries]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--hosts {shown}: {repeated[0]} is repeated; name each host once")
    # A flag that needs several machines
    if min_hosts is None:
        return
    if not entries:
        raise UserError(f"--min-hosts {min_hosts}: has no effect on one machine; add --hosts")
    if max_restarts == 0:
        raise UserError(
            f"--min-hosts {min_hosts}: has no effect without restarts; add --max-restarts, such as --max-restarts 10"
        )
