"""Run the checks of ``mjlab-dist doctor`` on other machines. Imports no torch."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mjlab_dist.launch.hosts.host_checks import Remote
from mjlab_dist.machine.findings import Finding, Status

# Checks that matter only on the machine of rank 0, because only rank 0 writes files and logs metrics
ONLY_HERE = ("log root", "--logger wandb")

# Seconds to wait for a machine's result of mjlab-dist doctor
TIMEOUT_S = 60


def examine_hosts(hosts: Sequence[str], ssh_config: str | None) -> dict[str, list[Finding]]:
    """Run the checks of ``mjlab-dist doctor`` on other machines, in parallel."""
    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(lambda host: _examine(host, ssh_config), hosts), strict=True))


def _examine(host: str, ssh_config: str | None) -> list[Finding]:
    import dacite  # not needed without other machines

    command = ("-m", "mjlab_dist", "doctor", "--json")
    try:
        answer = Remote(host, ssh_config, time.monotonic() + TIMEOUT_S).run(*command)
        report = json.loads(answer.stdout.strip().rpartition("\n")[2])  # the shell may print lines first
        found = [dacite.from_dict(Finding, check, dacite.Config(cast=[Status])) for check in report["checks"]]
    except Exception as error:  # noqa: BLE001 (whatever prevents the checks is their result)
        fix = f"run `ssh {host} {shlex.join((sys.executable, *command))}` to see why"
        figure = str(error).strip().rpartition("\n")[2] or type(error).__name__
        return [Finding(name="doctor", figure=figure, status=Status.FAIL, fix=fix)]
    return [finding for finding in found if finding.name not in ONLY_HERE]
