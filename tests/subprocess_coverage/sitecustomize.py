"""Give ranks time to write their coverage data. PYTHONPATH contains this folder only while coverage is measured.

Without this module, ranks could be killed before they have written the data: when a launcher has received the results
of all ranks, it kills their agent and thus the ranks.
"""

from __future__ import annotations

import subprocess
import time
from typing import Any

AGENT = "mjlab_dist.launch.torchrunx_agent"

LIMIT_S = 5.0

_kill = subprocess.Popen.kill


def _kill_after_ranks(self: subprocess.Popen[Any]) -> None:
    if isinstance(self.args, list) and AGENT in self.args:
        import psutil

        try:
            servers = psutil.Process(self.pid).children()
            deadline = time.monotonic() + LIMIT_S
            while any(server.children() for server in servers) and time.monotonic() < deadline:
                time.sleep(0.02)
        except psutil.Error:
            pass
    _kill(self)


subprocess.Popen.kill = _kill_after_ranks
