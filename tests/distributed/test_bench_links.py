"""scripts/bench_links.py, which measures training over slow networks, removes its namespaces if signals end it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_links.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or not Path("/dev/net/tun").exists(),
        reason="needs root, ip and TUN devices",
    ),
]


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.5])
def test_no_namespace_is_left_after_several_signals(
    delay_s: float, wait_for: Callable[[Callable[[], bool]], None]
) -> None:
    script = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--rounds", "1", "--sums", "--links", "1g"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    pattern = f"ns-link?-{script.pid}"
    wait_for(lambda: script.poll() is not None or any(Path("/run/netns").glob(pattern)))
    time.sleep(delay_s)  # meanwhile, the script prepares the link, or ranks run
    for _ in range(3):
        os.killpg(script.pid, signal.SIGTERM)
        time.sleep(0.02)  # meanwhile, the script removes the namespaces
    output, _ = script.communicate(timeout=60)
    if "Operation not permitted" in output:
        pytest.skip("network namespaces are refused here")
    assert script.returncode == 128 + signal.SIGTERM, output
    assert not list(Path("/run/netns").glob(pattern))
