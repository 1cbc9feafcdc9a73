"""64 ranks, of which 32 share each core."""

from __future__ import annotations

import json

import pytest
from conftest import Command

from mjlab_dist.runs.run_dir import RANKS_FILE, read_metrics


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_64_ranks_start_report_and_save(command: Command) -> None:
    ranks = ("--gpu-ids", "None", "--cpu-ranks", "64", "--oversubscribe", "--num-envs", "2")
    done = command("train", "cartpole-balance", *ranks, "--max-iterations", "3", "--log-root", "logs", timeout_s=1000)
    assert done.code == 0, done.err
    (run_dir,) = (command.cwd / "logs" / "cartpole-balance").iterdir()
    assert [rank["rank"] for rank in json.loads((run_dir / RANKS_FILE).read_text())] == list(range(64))
    assert [row["total_steps"] for row in read_metrics(run_dir)] == [64 * 2 * 32 * i for i in (1, 2, 3)]
