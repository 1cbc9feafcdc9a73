"""Restart a run many times by random faults, and check what is left: ``uv run python scripts/soak.py --restarts 200``.

Trains cartpole-balance on two CPU ranks. Every attempt resumes from the newest checkpoint. One of the faults of
docs/reliability.md ends it after one or two iterations. In the end, the policy must be as good as without faults, and
no process, port or temporary file may be left.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from mjlab_dist.run_dir import CHECKPOINTS_DIR, read_metrics

KINDS = {"raise": 3, "sigkill": 3, "exit": 2, "sigstop": 1, "skip_collective": 1}
"""Relative frequency of each fault."""

MARK = "MJLAB_DIST_SOAK"
"""Environment variable that all processes of the soak test inherit."""

FULL_RETURN = 950.0
"""Minimum of the final mean return, of at most 1,000."""


def main() -> None:
    """Run the soak test, print the results, and exit with 1 if anything is left behind or lost."""
    parser = argparse.ArgumentParser(description="Restart a run many times by random faults, and check what is left")
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-root", default="logs/soak")
    args = parser.parse_args()
    # Faults: each in a random rank, one or two iterations after the previous one
    draw = random.Random(args.seed)
    kinds = draw.choices(list(KINDS), weights=list(KINDS.values()), k=args.restarts)
    faults = [f"{draw.randrange(2)}:{2 * i + 2 + draw.randrange(2)}:{kind}" for i, kind in enumerate(kinds)]
    # Run
    log_root = args.log_root
    command = [
        *("train", "cartpole-balance", "--gpu-ids", "None", "--cpu-ranks", "2", "--log-root", log_root),
        *("--max-iterations", str(max(150, 2 * args.restarts + 50)), "--checkpoint.interval", "1"),
        *("--max-restarts", str(args.restarts), "--hang-timeout", "10"),
    ]
    start = time.monotonic()
    temporary = tempfile.mkdtemp(prefix="soak-")
    environ = {**os.environ, "MJLAB_DIST_FAULT": ",".join(faults), MARK: "1", "TMPDIR": temporary}
    done = subprocess.run(command, env=environ, check=False, stdout=subprocess.PIPE, text=True)
    took_s = time.monotonic() - start
    # Its metrics, and everything that is left behind
    run_dir = max(Path(log_root, "cartpole-balance").iterdir())
    rows = read_metrics(run_dir)
    unfinished = [p.name for p in (run_dir / CHECKPOINTS_DIR).iterdir() if p.name.endswith(".tmp")]
    restarts, reached = done.stdout.count("Restarting"), rows[-1]["mean_return"] or 0.0
    numbers = [row["iteration"] for row in rows]
    left = [*leftovers(), *(p.name for p in Path(temporary).iterdir()), *unfinished]
    shutil.rmtree(temporary)
    # Results
    print(f"{restarts} restarts in {took_s / 60:.0f} minutes, {took_s / (restarts + 1):.1f} s each")
    print(f"faults: {dict(collections.Counter(kinds[:restarts]))}")
    print(f"exit code {done.returncode}, mean return {reached:.1f} at iteration {numbers[-1]}; {run_dir}")
    print(f"left behind: {', '.join(left) or 'nothing'}")
    in_order = numbers == list(range(1, len(numbers) + 1))
    good = done.returncode == 0 and restarts == args.restarts and reached >= FULL_RETURN
    sys.exit(0 if good and in_order and not left else 1)


def leftovers() -> list[str]:
    """Return the processes of a soak test, and the ports that they listen on."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK):
                found.append(f"process {process.pid} ({process.name()})")
                found += [f"port {c.laddr.port}" for c in process.net_connections("tcp") if c.status == "LISTEN"]
        except psutil.Error:
            continue
    return found


if __name__ == "__main__":
    main()
