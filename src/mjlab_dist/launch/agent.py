"""torchrunx's agent on the launcher's machine, which starts the ranks.

The agent starts before its arguments are available, so that it imports its libraries at the same time as the launcher
and the process that ranks are forked from. torchrunx itself starts the agent only after the launcher has imported
torch, and the agent starts ranks only after it has imported torch.
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
"""Argument to fork ranks from a process that has imported their libraries."""

MAX_DIRECTORY = 70
"""Maximum length of TMPDIR in bytes. The fork server creates a Unix socket below it, whose path is limited to 107."""


def main() -> None:
    """Import libraries, read torchrunx's arguments as one line of JSON, and run its agent.

    Return without running it if the launcher ends first.
    """
    # Fork server, which imports the ranks' libraries
    forks = FORK in sys.argv and len(os.fsencode(os.environ.get("TMPDIR", ""))) <= MAX_DIRECTORY
    if forks:
        forkserver.set_forkserver_preload(["mjlab_dist.launch.fork_server"])
        forkserver.ensure_running()
    # The agent's own libraries
    with start_up():
        import torch.distributed.elastic.multiprocessing as elastic
        import torchrunx.agent

    # Arguments from the launcher
    line = sys.stdin.readline()
    if not line:
        return
    sys.argv[1:] = json.loads(line)
    # torchrunx's agent, with its start method replaced
    start = functools.partial(elastic.start_processes, start_method="forkserver" if forks else "spawn")
    adapted = SimpleNamespace(start_processes=start, DefaultLogsSpecs=elastic.DefaultLogsSpecs)
    with patched(torchrunx.agent, "dist_mp", adapted):
        runpy.run_module("torchrunx", run_name="__main__")


if __name__ == "__main__":
    main()
