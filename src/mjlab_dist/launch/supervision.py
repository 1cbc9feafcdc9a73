"""Supervise the ranks of a launch (one start of ranks): a rank is running, done, failed, lost or hung."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from mjlab_dist.distributed.heartbeat import PAUSE_S, Control
from mjlab_dist.distributed.rank import in_words
from mjlab_dist.errors import (
    BufferOverflowError,
    DiskFullError,
    Exit,
    HangError,
    PreflightError,
    RankError,
    TakenOverError,
    UserError,
    listed,
    named,
)
from mjlab_dist.launch.channel import SETTLED_S, Channels
from mjlab_dist.messages import Event, Listener

# Interval between checks of the processes, in seconds
POLL_S = 0.2

# Seconds to wait for the other ranks' reports once it is known which rank failed first, or after a hang
GRACE_S = 2.0

# Seconds to wait for reports if the process of a rank has ended without a report
LOST_S = 5.0

# Seconds to wait for the failed rank's report if only ranks that lost contact with it have reported. The failed rank
# may still be writing files.
PATIENCE_S = 20.0

# Seconds without an event of any rank after which ranks that are still in a step of their start are considered hung;
# --hang-timeout if that is longer. Between two events, a rank compiles one module or builds its envs.
START_S = 600.0

# Seconds that a rank has to answer the request to stop. Then all ranks are killed.
ANSWER_S = 60.0

# Seconds beyond the ranks' own timeout after which the launcher considers ranks hung.
#
# Usually, a rank notices a hang before the launcher does. If all ranks are stopped, only the launcher can notice a
# hang.
LAST_RESORT_S = 10.0

# Report of a rank that fails; worker writes it
Report = dict[str, Any]


class Ended(NamedTuple):
    """A process that ranks depend on and that has ended."""

    # Name for messages
    name: str
    # Exit code; negative if a signal killed the process, or -1 if it is on a machine that cannot be reached
    code: int


class AgentLostError(Exception):
    """An agent has ended, or does not answer: the message then names its machine."""


class RankLostError(Exception):
    """The process of a rank has ended."""

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid  # on the rank's machine; None if no signal has ended the process


class Ranks:
    """Ranks of one launch, on one or several machines. One thread receives events; another waits for the results."""

    def __init__(self, hosts: Sequence[str], listen: Listener, control: Control) -> None:
        self._hosts = hosts
        self._num_ranks = len(hosts)
        self._num_own = list(hosts).count(hosts[0])
        self._listen = listen
        self._control = control
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._other_pids: dict[int, int] = {}
        self._iterations: dict[int, int] = {}
        self._steps: dict[int, str] = dict.fromkeys(range(self._num_ranks), "starting its process")
        self._heard_at = self._advanced_at = time.monotonic()
        self._results: dict[int, Any] = {}
        self._reports: dict[int, Report] = {}
        self._asked_at: float | None = None
        self._is_stopping = False
        self.channels = Channels(self.receive)

    def receive(self, event: Event) -> None:
        """Record an event of a rank, or pass it to the listener if it is for the user."""
        rank = event.get("rank", -1)
        with self._changed:
            self._heard_at = time.monotonic()
            match event["kind"]:
                case "joined":
                    pids = self._pids if rank < self._num_own else self._other_pids
                    pids[rank] = event["pid"]
                    self._steps.pop(rank, None)
                case "step":
                    self._steps.pop(rank, None)
                    if event["step"] is not None:
                        self._steps[rank] = event["step"]
                case "stopping":
                    self._is_stopping = True
                case "beat":
                    self._steps.pop(rank, None)
                    self._iterations[rank] = event["iteration"]
                    self._advanced_at = time.monotonic()
                case "result":
                    self._results[rank] = event["result"]
                case "failed":
                    self._reports[event["report"]["rank"]] = event["report"]
                case _:
                    self._listen(event)
                    return
            self._changed.notify()

    def wait(self, launched: Future[Any], hang_timeout_s: float, helper_ended: Callable[[], Ended | None]) -> list[Any]:
        """Wait for all ranks' results, and return them in order of rank."""
        checked_at = time.monotonic()
        while True:
            # Wait for the next event, or for the next check of the processes
            with self._changed:
                self._changed.wait(POLL_S)
                # Do not count the time while this process was stopped, because events of that time are still unread
                paused_s = time.monotonic() - checked_at
                if paused_s > PAUSE_S:
                    self._advanced_at += paused_s
                    self._heard_at += paused_s
                    self._asked_at = self._asked_at and self._asked_at + paused_s
                checked_at = time.monotonic()

            # All ranks are done
            if len(self._results) == self._num_ranks:
                break

            # Requests of the caller
            if self._control.kill_requested:
                raise RankError("the ranks were killed on request")
            self._forward_stop()

            # A rank that does not finish its start: ask it for its stack
            start_s = max(START_S, hang_timeout_s)
            with self._changed:
                stuck = sorted(self._steps) if time.monotonic() - self._heard_at > start_s else []
            for rank in stuck:
                self.channels.send(rank, "report")

            # Failure: a rank reported an error, a process ended, torchrunx raised, or no iteration ended in time.
            # A process exits right after it sends its result, so results can still arrive during the wait for reports
            # During a step, such as building larger buffers, the limit for steps applies instead
            is_training = bool(self._iterations) and not self._steps
            hangs = is_training and time.monotonic() - self._advanced_at > hang_timeout_s + LAST_RESORT_S
            helper = helper_ended()
            stops = hangs or bool(stuck) or helper is not None
            if self._reports or self._lost() or launched.done() or stops:
                self._wait_for_reports(launched, briefly=stops)
                if len(self._results) == self._num_ranks:
                    break
                # Ranks end together with their agent, and their end may be noticed first: check the agents again
                why = f"no progress for {start_s:g} s in a step of the start" if stuck else ""
                ended = helper or helper_ended()
                # Agents that a lost rank has ended: torchrunx's launcher names this rank, but may not have raised yet
                if ended is not None and ended.code == 0:
                    concurrent.futures.wait([launched], LOST_S)
                error = launched.exception() if launched.done() else None
                raise self._failure(hangs or bool(stuck), ended, error, why)
        return [self._results[rank] for rank in range(self._num_ranks)]

    def _forward_stop(self) -> None:
        """Ask one rank to stop, once. That rank passes the request on to all ranks, together with its metrics."""
        if not self._control.stop_requested or self._is_stopping or not self._pids:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self.channels.send(min(self._pids), "stop")
        if time.monotonic() - self._asked_at > ANSWER_S:
            raise RankError(
                f"rank {min(self._pids)} did not answer the request to stop within {ANSWER_S:g} s, so all ranks were "
                "killed",
                exit_code=Exit.INFRASTRUCTURE,
            )

    def _lost(self) -> list[int]:
        """Return the ranks on the launcher's machine whose process ended without a result or a report."""
        with self._changed:
            pids = {rank: self._pids[rank] for rank in self._pending() if rank in self._pids}
        return [rank for rank, pid in pids.items() if not _is_alive(pid)]

    def _pending(self) -> list[int]:
        """Return the ranks that have sent neither a result nor a report."""
        return [rank for rank in range(self._num_ranks) if rank not in self._results and rank not in self._reports]

    def _wait_for_reports(self, launched: Future[Any], briefly: bool) -> None:
        """Wait until all events have arrived, and ranks that wait for a failed rank have noticed its failure."""
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            with self._changed:
                pending = set(self._pending())
                first_failed = any(not report["follows"] for report in self._reports.values())
            # If all pending processes have ended, no report can follow. This process sees only its own machine's
            # processes; the processes on other machines have ended if torchrunx's launch has.
            possibly_alive = {rank for rank in pending if rank < self._num_own or not launched.done()}
            lost = set(self._lost())
            if waited_s > SETTLED_S and possibly_alive <= lost:
                return
            # Limit the wait: with NCCL, ranks wait in a CUDA kernel and may never notice that another rank was killed.
            one_is_lost = bool(lost) or launched.done()
            if waited_s > (GRACE_S if briefly or first_failed else LOST_S if one_is_lost else PATIENCE_S):
                return
            time.sleep(POLL_S)

    def _failure(
        self, hangs: bool, helper: Ended | None, error: BaseException | None, why: str = ""
    ) -> RankError | UserError:
        """Return the error of the rank that failed first: its own error, or one that names it as missing or hung."""
        # A rank with an error of its own
        reports = sorted(
            self._reports.values(), key=lambda r: (r["follows"], r["type"] == HangError.__name__, r["time"])
        )
        first = reports[0] if reports else None
        if first and not first["follows"] and first["type"] != HangError.__name__:
            return _as_error(first)
        # A process on which ranks depend
        if helper is not None and (helper.code < 0 or not (self._lost() or _ended_after_a_rank(helper, error))):
            how = f"ended (exit code {helper.code})"
            if helper.code < 0:
                how = "is lost" if helper.code == -1 else f"was killed (signal {-helper.code})"
            return RankError(f"{helper.name} {how}; no rank can report without it", exit_code=Exit.INFRASTRUCTURE)
        # A machine that does not answer: torchrunx's launcher then ends the ranks
        if isinstance(error, AgentLostError) and str(error):
            return RankError(f"{error}; is its machine still connected?", exit_code=Exit.INFRASTRUCTURE)
        # Hung ranks
        if hangs or any(report["type"] == HangError.__name__ for report in reports):
            return self._hang(why)
        # No rank is missing, but all failed ranks report that they lost another rank
        pending = self._pending()
        if first and not pending:
            return _skipped_sum(reports) or _as_error(first)
        # A rank without a report. If some processes have ended, the other pending ranks only wait for them.
        missing = self._named_in(error) or self._lost() or pending
        symptom = (first["message"] or first["type"]) if first else str(error or "") or "its process is gone"
        return RankError(
            f"{in_words(missing)} ended without a report: killed (out of memory?) or crashed outside of Python. "
            f"First symptom: {' '.join(symptom.split())}",
            missing[0] if len(missing) == 1 else None,
            exit_code=Exit.INFRASTRUCTURE,
        )

    def _named_in(self, error: BaseException | None) -> list[int]:
        """Return the rank, on another machine, whose process torchrunx names as the first that was killed.

        torchrunx then also ends the agent of the launcher's machine with its ranks, although they are not the cause.
        """
        killed = error.pid if isinstance(error, RankLostError) else None
        ranks = [rank for rank, pid in self._other_pids.items() if pid == killed]
        return ranks if len(ranks) == 1 else []

    def _hang(self, why: str) -> RankError:
        places: list[str] = [why] if why else []
        stacks: list[str] = []
        for rank in range(self._num_ranks):
            report = self._reports.get(rank)
            done = report["iteration"] if report else self._iterations.get(rank)
            # Without a report, the last known iteration may be half a second old.
            iteration = f"{'' if report else 'at least '}{done or 0}"
            state = f"{report['type']}: {report['message']}" if report else self._process_state(rank)
            step = self._steps.get(rank)
            places.append(f"rank {rank} is {step}" if step else f"rank {rank} has done {iteration} iterations")
            stacks.append(f"Rank {rank}, after {iteration} iterations: {state}")
            if report:
                stacks.append(report["traceback"].rstrip())
        return RankError(
            f"ranks hang: {', '.join(places)}", report="\n".join(stacks) + "\n", exit_code=Exit.INFRASTRUCTURE
        )

    def _process_state(self, rank: int) -> str:
        """Describe the process of a rank that sent no report."""
        import psutil  # slow to import, and needed only after a failure

        if rank >= self._num_own:
            return f"its process on {self._hosts[rank]} sent no report"
        try:
            status = psutil.Process(self._pids[rank]).status()
        except (psutil.Error, KeyError):
            return "its process is gone"
        if status == psutil.STATUS_STOPPED:
            return "its process is stopped by a signal (SIGSTOP) and cannot report its stack"
        return f"its process exists ({status}) but sent no report"


def _ended_after_a_rank(agent: Ended, error: BaseException | None) -> bool:
    """Return whether an agent has ended because a rank on another machine ended.

    An agent is torchrunx's process that starts the ranks of one machine. If a rank is lost, all of torchrunx's agents
    end. Their exit code is 0, or a different one if they lose their connections first. torchrunx's launcher then raises
    RankLostError.
    """
    return agent.code == 0 or isinstance(error, RankLostError)


def _skipped_sum(reports: Sequence[Report]) -> RankError | None:
    """Return the error of ranks that summed tensors of different sizes in bytes; None if all sizes are equal.

    A rank that skipped a sum over ranks cannot notice this itself. If the majority of ranks is in the same sum, the
    other ranks have skipped a sum. Without a majority, the error does not name the rank.
    """
    ranks: dict[int, list[int]] = {}
    for report in sorted(reports, key=lambda report: report["rank"]):
        if report["sum_bytes"] is not None:
            ranks.setdefault(report["sum_bytes"], []).append(report["rank"])
    if len(ranks) < 2:
        return None
    sums = listed(
        f"{in_words(those)} {'is' if len(those) == 1 else 'are'} in a sum of {n} bytes" for n, those in ranks.items()
    )
    most, *others = sorted(ranks.values(), key=len, reverse=True)
    guilty = sorted(rank for those in others for rank in those)
    if len(most) <= len(guilty):
        text = f"ranks are in different sums, so at least one skipped a sum over ranks: {sums}"
        return RankError(text, report=reports[0]["traceback"], exit_code=Exit(reports[0]["exit_code"]))
    report = next(report for report in reports if report["rank"] == guilty[0])
    return RankError(
        f"{in_words(guilty)} skipped a sum over ranks: {sums}",
        guilty[0] if len(guilty) == 1 else None,
        report["traceback"],
        Exit(report["exit_code"]),
    )


def _as_error(report: Report) -> RankError | UserError:
    code = Exit(report["exit_code"])
    if code is Exit.USAGE:
        return UserError(report["message"])
    if code is Exit.PREFLIGHT:
        return PreflightError(f"rank {report['rank']} on {report['host']}: {report['message']}")
    if report["type"] in (BufferOverflowError.__name__, TakenOverError.__name__, DiskFullError.__name__):
        # An error of the whole run, without a traceback
        return RankError(report["message"], exit_code=code, may_pass=report["type"] != DiskFullError.__name__)
    return RankError(
        f"rank {report['rank']} failed: {named(report['type'], report['message'])}",
        report["rank"],
        report["traceback"],
        code,
    )


def _is_alive(pid: int) -> bool:
    """Return whether a process is running. A zombie is not: it has ended, and its parent has not waited for it yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 (a hot path)
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
