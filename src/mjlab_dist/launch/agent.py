"""torchrunx's agent on the launcher's machine, which starts the ranks. Started before the launcher knows its arguments.

The launcher, the agent and the process that ranks are forked from import their libraries at the same time. torchrunx itself
starts its agent only once the launcher has imported torch, and the agent would start ranks only once it has imported torch.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from multiprocessing import forkserver
from types import SimpleNamespace

from mjlab_dist.imports import start_up
from mjlab_dist.patching import patched

FORK = "--fork"
"""Argument with which ranks are forked from a process that has imported their libraries."""

MAX_DIRECTORY = 70
"""Longest name of a temporary directory below which the fork server can open its Unix socket, whose name has 107 bytes."""


def main() -> None:
    """Import, wait for torchrunx's arguments as a line of JSON, and be its agent; return if the launcher ends before."""
    forks = FORK in sys.argv and len(os.fsencode(os.environ.get("TMPDIR", ""))) <= MAX_DIRECTORY
    if forks:
        forkserver.set_forkserver_preload(["mjlab_dist.launch.fork_server"])
        forkserver.ensure_running()
    with start_up():
        import torch.distributed.elastic.multiprocessing as elastic
        import torchrunx.agent

    line = sys.stdin.readline()
    if not line:
        return
    sys.argv[1:] = json.loads(line)
    start = functools.partial(elastic.start_processes, start_method="forkserver" if forks else "spawn")
    adapted = SimpleNamespace(start_processes=start, DefaultLogsSpecs=elastic.DefaultLogsSpecs)
    with patched(torchrunx.agent, "dist_mp", adapted):
        runpy.run_module("torchrunx", run_name="__main__")


if __name__ == "__main__":
    main()
