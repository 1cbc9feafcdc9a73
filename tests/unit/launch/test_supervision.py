"""The launcher finds the rank that failed first. tests/distributed/test_faults.py uses real ranks."""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import Future
from multiprocessing import Pipe
from typing import Any

import pytest

from mjlab_dist.distributed.heartbeat import Control
from mjlab_dist.errors import Exit, PreflightError, RankError, UserError
from mjlab_dist.launch import supervision
from mjlab_dist.launch.supervision import AgentLostError, Ended, RankLostError, Ranks


def report(rank: int, **fields: Any) -> dict[str, Any]:
    """Return the report of a rank that lost its connection to another rank."""
    return {
        "rank": rank,
        "host": "localhost",
        "time": float(rank),
        "iteration": 1,
        "type": "LostRankError",
        "exit_code": int(Exit.FAILED),
        "follows": True,
        "sum_bytes": None,
        "message": "rank 0 has ended",
        "traceback": f"traceback of {rank}",
        **fields,
    }


def ranks_on(*hosts: str) -> Ranks:
    return Ranks(list(hosts), lambda _: None, Control())


def ended(error: Exception | None) -> Future[Any]:
    """Return the launch by torchrunx, which has ended with an error, or has not ended if there is none."""
    launch: Future[Any] = Future()
    if error is not None:
        launch.set_exception(error)
    return launch


def blamed(*reports: dict[str, Any]) -> RankError | UserError:
    ranks = ranks_on(*["localhost"] * len(reports))
    for one in reports:
        ranks.receive({"kind": "failed", "report": one})
    with pytest.raises((RankError, UserError)) as caught:
        ranks.wait(Future(), 300.0, lambda: None)
    return caught.value


@pytest.mark.parametrize(
    ("sizes", "guilty"),
    [
        ((800, 800, 40), 2),
        ((40, 800, 800), 0),
        ((800, 40, 800, 800), 1),
        ((None, 800, 800, 40), 3),
        ((800, 40), None),
        ((800, 800, 40, 40), None),
    ],
)
def test_the_rank_whose_sum_differs_is_named(sizes: tuple[int | None, ...], guilty: int | None) -> None:
    error = blamed(*(report(rank, sum_bytes=size) for rank, size in enumerate(sizes)))
    assert isinstance(error, RankError)
    assert error.rank == guilty
    assert {"800", "40"} <= set(re.findall(r"\d+", str(error)))
    if guilty is not None:
        assert str(error).startswith(f"rank {guilty} ")
        assert error.report == f"traceback of {guilty}"


def test_ranks_in_the_same_sum_raise_the_first_report() -> None:
    error = blamed(*(report(rank, sum_bytes=800) for rank in range(3)))
    assert isinstance(error, RankError)
    assert error.rank == 0


def test_a_machine_that_is_not_ready_is_named() -> None:
    fields = {"follows": False, "exit_code": int(Exit.PREFLIGHT), "message": "no space left"}
    error = blamed(report(0), report(1, host="node7", **fields))
    assert isinstance(error, PreflightError)
    assert str(error) == "rank 1 on node7: no space left"


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    error = blamed(report(0), report(1, follows=False, type="AssertionError", message=""))
    assert str(error) == "rank 1 failed: AssertionError"


@pytest.mark.parametrize(
    ("code", "error", "rank", "cause"),
    [
        (0, RankLostError("signal 9", None), 1, "rank 1 "),
        (1, RankLostError("signal 9", None), 1, "rank 1 "),
        (0, None, 1, "rank 1 "),  # torchrunx has not ended yet
        (1, AgentLostError(), None, "the agent "),
        (1, None, None, "the agent "),
        (-9, RankLostError("signal 15", None), None, "the agent "),  # it was killed first, and its ranks ended with it
        (None, AgentLostError("no answer from node7"), None, "no answer from node7"),
    ],
)
def test_an_agent_or_machine_that_ends_after_a_rank_of_another_machine_is_not_the_cause(
    code: int | None, error: Exception | None, rank: int | None, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LOST_S", 0.0)
    ranks = ranks_on("localhost", "node7")
    ranks.receive({"kind": "failed", "report": report(0, message="rank 1 closed its connection")})
    with pytest.raises(RankError) as caught:
        ranks.wait(ended(error), 300.0, lambda: None if code is None else Ended("the agent", code))
    assert caught.value.rank == rank
    assert str(caught.value).startswith(cause)


def test_a_killed_rank_of_another_machine_is_named_although_its_end_ends_all_agents() -> None:
    ranks = ranks_on("localhost", "node7", "node7")
    for rank, pid in enumerate((2**22 + 1, 70, 71)):  # no process has rank 0's process ID
        ranks.receive({"kind": "joined", "rank": rank, "pid": pid})
    error = RankLostError("signal 9", 71)
    with pytest.raises(RankError, match=r"^rank 2 ended without a report") as caught:
        ranks.wait(ended(error), 300.0, lambda: None)
    assert caught.value.rank == 2


@pytest.mark.usefixtures("impatient")
def test_a_killed_rank_of_another_machine_is_named_although_torchrunx_reports_it_after_the_end_of_all_agents() -> None:
    ranks, launched = ranks_on("localhost", "node7"), Future[Any]()
    for rank, pid in enumerate((os.getpid(), 70)):
        ranks.receive({"kind": "joined", "rank": rank, "pid": pid})
    error = RankLostError("signal 9", 70)
    timer = threading.Timer(0.2, launched.set_exception, [error])
    timer.start()
    with pytest.raises(RankError, match=r"^rank 1 ended without a report"):
        ranks.wait(launched, 300.0, lambda: Ended("the agent", 0))
    timer.join()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_S", "ANSWER_S", "SETTLED_S", "GRACE_S", "POLL_S"):
        monkeypatch.setattr(supervision, name, 0.0)


def started(*steps: str | None) -> Ranks:
    """Return ranks that have joined, and have begun these steps."""
    ranks = ranks_on(*["localhost"] * len(steps))
    for rank, step in enumerate(steps):
        ranks.receive({"kind": "joined", "rank": rank, "pid": os.getpid()})
        ranks.receive({"kind": "step", "rank": rank, "step": step})
    return ranks


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_does_not_finish_its_start_is_named_with_the_step_and_the_limit() -> None:
    ranks = started(None, "building its envs")
    with pytest.raises(RankError, match=r"no progress for 0 s .*rank 1 is building its envs") as caught:
        ranks.wait(Future(), 0.0, lambda: None)
    assert "rank 0 is" not in str(caught.value)
    assert caught.value.exit_code == Exit.INFRASTRUCTURE
    with pytest.raises(RankError, match=r"rank 0 is starting its process"):
        ranks_on("localhost").wait(Future(), 0.0, lambda: None)
    ranks.receive({"kind": "failed", "report": report(0, follows=False, type="KeyError", message="no joint")})
    with pytest.raises(RankError, match=r"^rank 0 failed: KeyError: no joint"):
        ranks.wait(Future(), 0.0, lambda: None)


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_waits_or_trains_has_no_deadline_for_its_start() -> None:
    ranks = started(None, "building its learner")
    ranks.receive({"kind": "beat", "rank": 1, "iteration": 0})
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            for rank in (0, 1):
                ranks.receive({"kind": "result", "rank": rank, "result": rank})

    assert ranks.wait(Future(), 300.0, check) == [0, 1]


def test_ranks_that_build_larger_buffers_have_the_deadline_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAST_RESORT_S", "POLL_S", "GRACE_S"):
        monkeypatch.setattr(supervision, name, 0.0)
    ranks = started(None)
    ranks.receive({"kind": "beat", "rank": 0, "iteration": 7})
    ranks.receive({"kind": "step", "rank": 0, "step": "building its envs again"})
    checks = iter(range(3))

    def check() -> None:
        if next(checks, None) is None:
            ranks.receive({"kind": "beat", "rank": 0, "iteration": 7})

    with pytest.raises(RankError, match="rank 0 has done at least 7 iterations"):
        ranks.wait(Future(), 0.0, check)
    assert next(checks, None) is None


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answers", [False, True])
def test_a_rank_must_answer_the_request_to_stop(answers: bool) -> None:
    control = Control()
    ranks = Ranks(["localhost"], lambda _: None, control)
    ranks.receive({"kind": "joined", "rank": 0, "pid": os.getpid()})
    here, there = Pipe()
    reading = threading.Thread(target=ranks.channels.read, args=(0, here))
    reading.start()
    control.request_stop()
    if answers:
        there.send_bytes(b'{"kind": "stopping", "rank": 0}')
        there.send_bytes(b'{"kind": "result", "rank": 0, "result": 7}')
        there.close()
        reading.join()
        assert ranks.wait(Future(), 300.0, lambda: None) == [7]
    else:
        with pytest.raises(RankError, match=r"^rank 0 did not answer .* 0 s"):
            ranks.wait(Future(), 300.0, lambda: None)
        assert there.recv_bytes() == b'"stop"'
        there.close()
        reading.join()
