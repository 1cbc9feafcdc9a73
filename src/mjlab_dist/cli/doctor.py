"""doctor: check whether this machine, or each of several machines, can train."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from mjlab_dist.cli.console import make_console
from mjlab_dist.cli.flags import by_flag, parse
from mjlab_dist.cli.run_flags import general_config
from mjlab_dist.config.checks import validate_hosts
from mjlab_dist.distributed.rank import named_hosts
from mjlab_dist.errors import Exit

if TYPE_CHECKING:
    from mjlab_dist.machine.preflight import Finding

# Name of this machine in the report
HERE = "localhost"

# Style of each result in the table
STYLES = {"ok": "green", "warning": "yellow", "fail": "bold red"}


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Check whether this machine can train, and print how to fix what prevents it. Exit with 3 if a check fails."""

    log_root: str = "logs"
    """Directory that holds all runs."""
    json: bool = False
    """Print one JSON object instead of the table."""
    hosts: tuple[str, ...] = ()
    """Machines to check, written as for train --hosts. Default: this machine."""
    ssh_config: str | None = None
    """SSH config file for hosts. Default: ~/.ssh/config, then /etc/ssh/ssh_config."""


def main(argv: Sequence[str], prog: str) -> None:
    """Run the checks, print the results, and exit with 3 if a check failed."""
    config = parse(DoctorConfig(), by_flag(argv), prog)

    from mjlab_dist.machine.doctor import examine  # --help does not need it

    # Other machines
    other: dict[str, list[Finding]] = {}
    if config.hosts:
        from mjlab_dist.launch.hosts.host_checks import check_hosts, examine_hosts, other_hosts

        hosts = named_hosts(config.hosts, os.environ)
        run = dataclasses.replace(general_config(), hosts=hosts, ssh_config=config.ssh_config)
        validate_hosts(hosts, None, 0)
        names = [host.name for host in other_hosts(run)]
        check_hosts(names, config.ssh_config)
        other = examine_hosts(names, config.ssh_config)
    # This machine
    found = {HERE: examine(Path(config.log_root), os.environ), **other}
    num_failed = sum(finding.status == "fail" for findings in found.values() for finding in findings)
    if config.json:
        plain = {host: [dataclasses.asdict(finding) for finding in findings] for host, findings in found.items()}
        report = {"hosts": plain} if config.hosts else {"checks": plain[HERE]}
        print(json.dumps({**report, "passed": num_failed == 0}))
    else:
        _show(found, num_failed)
    if num_failed:
        sys.exit(Exit.PREFLIGHT)


def _show(found: Mapping[str, Sequence[Finding]], num_failed: int) -> None:
    console = make_console()
    for host, findings in found.items():
        table = Table("check", "figure", "", title=host if len(found) > 1 else None)
        for finding in findings:
            seen = Text(finding.figure)
            if finding.fix:
                seen.append(f"\nFix: {finding.fix}", style="cyan")
            word = "FAIL" if finding.status == "fail" else finding.status
            table.add_row(finding.name, seen, Text(word, style=STYLES[finding.status]))
        console.print(table)
    advice = "1 check fails: fix it before" if num_failed == 1 else f"{num_failed} checks fail: fix them before"
    machines = "These machines" if len(found) > 1 else "This machine"
    console.print(f"{advice} training." if num_failed else f"{machines} can train.")
