"""The launcher names the failed rank if ranks behave as they do with NCCL: see failing_ranks.py."""

from __future__ import annotations

from pathlib import Path

import failing_ranks
import pytest

from mjlab_dist.config import registry
from mjlab_dist.distributed import RankDevice
from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import Exit, RankError
from mjlab_dist.launch import supervision
from mjlab_dist.launch.hosts.ssh import Host
from mjlab_dist.launch.plan import RunPlan
from mjlab_dist.launch.ranks import run_ranks
from mjlab_dist.launch.worker import Entry, RunResult

CPU = RankDevice(device="cpu", name="cpu", torch_threads=1, backend="gloo")

pytestmark = pytest.mark.timeout(180)


def failure(entry: Entry[RunResult], run_dir: Path) -> RankError:
    config = registry.task_config("cartpole-balance")
    plan = RunPlan(hosts=(Host(devices=(CPU,) * 3),), run_dir=run_dir)
    with pytest.raises(RankError) as caught:
        run_ranks(entry, RunResult, config, plan, listen=lambda _: None, control=Control())
    return caught.value


@pytest.mark.slow
def test_a_rank_that_raises_reports_before_it_leaves_the_group(tmp_path: Path) -> None:
    error = failure(failing_ranks.raise_while_peers_wait, tmp_path)
    assert error.rank == failing_ranks.FAILING
    assert error.exit_code is Exit.FAILED
    assert "raise_while_peers_wait" in error.report  # the report contains the rank's traceback


@pytest.mark.slow
def test_a_killed_rank_is_named_although_its_peers_never_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PATIENCE_S", 600.0)  # the launcher must not wait this long for missing reports
    error = failure(failing_ranks.die_while_peers_wait, tmp_path)
    assert error.rank == failing_ranks.FAILING
    assert error.exit_code is Exit.INFRASTRUCTURE
