"""Entry point of a rank's process: torchrunx's own entry point, with its log connection replaced."""

from __future__ import annotations

import multiprocessing
import sys

from mjlab_dist.launch.log_records import RecordSender
from mjlab_dist.machine.processes import die_with_parent
from mjlab_dist.patching import patched


def run_rank(arguments: bytes) -> object:
    """Run torchrunx's entry point of a rank, in the rank's process.

    Args:
        arguments: torchrunx's arguments, pickled by the agent.
    """
    # From here on, Linux kills this rank when its agent ends. If the agent has ended before, end now.
    die_with_parent()
    agent = multiprocessing.parent_process()
    if agent is None or not agent.is_alive():
        sys.exit(1)

    import torchrunx.utils.log_streaming
    import torchrunx.worker

    with patched(torchrunx.utils.log_streaming, "SocketHandler", RecordSender):
        return torchrunx.worker.worker_entrypoint(arguments)
