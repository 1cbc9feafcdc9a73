"""The ranks of one launch as their launcher sees them: at work, done, failed, gone or hanging."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from mjlab_dist.control import Control
from mjlab_dist.distributed.rank import in_words
from mjlab_dist.errors import Exit, HangError, RankError, UserError
from mjlab_dist.messages import Event, Listener

POLL_S = 0.2
"""Seconds between two looks at the processes."""

SETTLED_S = 0.5
"""Seconds that what a process has said before it ended may be on its way."""

GRACE_S = 2.0
"""Seconds that the other ranks have to report, once it is known which one failed."""

LOST_S = 5.0
"""Seconds that the other ranks have to report, where the process of one has ended without a report."""

PATIENCE_S = 20.0
"""Seconds that a rank has to say so, where the others only lost it: it may be finishing its files first."""

LAST_RESORT_S = 10.0
"""Seconds beyond the ranks' own timeout after which the launcher takes them to hang: they were all stopped, say."""

Report = dict[str, Any]
"""What a rank says when it dies: see ``worker``."""


class Ranks:
    """Ranks of one or several machines. Events come from one thread, questions from another."""

    def __init__(self, hosts: Sequence[str], ranks_per_host: int, listen: Listener, control: Control) -> None:
        """Know of nothing yet.

        Args:
            hosts: Machines that have ranks; the first is this one, whose processes can be looked at.
            ranks_per_host: Ranks on each.
            listen: Is handed the events that are for people.
            control: Asked whether to stop in order.
        """
        self._hosts = hosts
        self._ranks_per_host = ranks_per_host
        self._num_ranks = len(hosts) * ranks_per_host
        self._listen = listen
        self._control = control
        self._changed = threading.Condition()
        self._pids: dict[int, int] = {}
        self._iterations: dict[int, int] = {}
        self._advanced_at = time.monotonic()
        self._results: dict[int, Any] = {}
        self._reports: dict[int, Report] = {}
        self._stop_passed_on = False

    def hear(self, event: Event) -> None:
        """Take an event of a rank."""
        rank = event.get("rank", -1)
        with self._changed:
            match event["kind"]:
                case "joined":
                    if rank < self._ranks_per_host:
                        self._pids[rank] = event["pid"]
                case "beat":
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

    def wait(self, launched: Future[Any], hang_timeout_s: float) -> list[Any]:
        """Wait for all ranks' results.

        Args:
            launched: Done if torchrunx gave up: ranks end by themselves, and it never returns before they do.
            hang_timeout_s: Seconds without an iteration after which ranks end themselves.

        Returns:
            A result per rank, in order of ranks.

        Raises:
            RankError: If one ended early, or hangs.
            UserError: If one ended because of something that the user can mend.
        """
        while True:
            with self._changed:
                self._changed.wait(POLL_S)
            if len(self._results) == self._num_ranks:
                break
            self._pass_on_stop()
            hangs = bool(self._iterations) and time.monotonic() - self._advanced_at > hang_timeout_s + LAST_RESORT_S
            if self._reports or self._gone() or launched.done() or hangs:
                self._wait_for_reports(launched, hangs)
                if len(self._results) == self._num_ranks:
                    break
                raise self._failure(hangs, launched.exception() if launched.done() else None)
        return [self._results[rank] for rank in range(self._num_ranks)]

    def _pass_on_stop(self) -> None:
        """One rank is enough: what it is asked travels to all with the metrics."""
        if self._control.stop_requested and not self._stop_passed_on and self._pids:
            self._stop_passed_on = True
            rank = min(self._pids)
            if rank not in self._gone():
                os.kill(self._pids[rank], signal.SIGTERM)

    def _gone(self) -> list[int]:
        """Ranks of this machine whose process has ended without a word."""
        with self._changed:
            pids = {rank: self._pids[rank] for rank in self._silent() if rank in self._pids}
        return [rank for rank, pid in pids.items() if not _is_alive(pid)]

    def _silent(self) -> list[int]:
        """Ranks that have told neither a result nor a failure."""
        return [rank for rank in range(self._num_ranks) if rank not in self._results and rank not in self._reports]

    def _wait_for_reports(self, launched: Future[Any], hangs: bool) -> None:
        """What was said last may still be on its way, and ranks that wait for the failed one notice it soon."""
        started = time.monotonic()
        while True:
            waited_s = time.monotonic() - started
            with self._changed:
                silent = set(self._silent())
                first_failed = any(not report["follows"] for report in self._reports.values())
            # Of other machines' processes torchrunx knows.
            open_here = {rank for rank in silent if rank < self._ranks_per_host or not launched.done()}
            gone = set(self._gone())
            if waited_s > SETTLED_S and open_here <= gone:
                return
            # Peers of a killed rank may never notice: with NCCL they wait in a kernel.
            one_is_lost = bool(gone) or launched.done()
            if waited_s > (GRACE_S if hangs or first_failed else LOST_S if one_is_lost else PATIENCE_S):
                return
            time.sleep(POLL_S)

    def _failure(self, hangs: bool, error: BaseException | None) -> RankError | UserError:
        """The rank that failed first: by its own report, or because it is missing where others wait for it."""
        reports = sorted(
            self._reports.values(), key=lambda r: (r["follows"], r["type"] == HangError.__name__, r["time"])
        )
        first = reports[0] if reports else None
        if first and not first["follows"] and first["type"] != HangError.__name__:
            return _as_error(first)
        if hangs or any(report["type"] == HangError.__name__ for report in reports):
            return self._hang()
        silent = self._silent()
        if first and not silent:
            return _as_error(first)
        silent = self._gone() or silent  # the others only wait for those that are gone
        noticed = first["message"] if first else str(error or "its process is gone")
        return RankError(
            f"{in_words(silent)} ended without a report: killed (out of memory?) or crashed outside of Python. "
            f"What was noticed of it: {' '.join(noticed.split())}",
            silent[0] if len(silent) == 1 else None,
            exit_code=Exit.INFRASTRUCTURE,
        )

    def _hang(self) -> RankError:
        places: list[str] = []
        stacks: list[str] = []
        for rank in range(self._num_ranks):
            report = self._reports.get(rank)
            done = report["iteration"] if report else self._iterations.get(rank)
            # What a rank that says nothing has last told may be half a second old.
            iteration = f"{'' if report else 'at least '}{done or 0}"
            state = f"{report['type']}: {report['message']}" if report else self._process_state(rank)
            places.append(f"rank {rank} has done {iteration} iterations")
            stacks.append(f"Rank {rank}, after {iteration} iterations: {state}")
            if report:
                stacks.append(report["traceback"].rstrip())
        return RankError(
            f"ranks hang: {', '.join(places)}", report="\n".join(stacks) + "\n", exit_code=Exit.INFRASTRUCTURE
        )

    def _process_state(self, rank: int) -> str:
        """What can be said of a process that says nothing itself."""
        import psutil  # noqa: PLC0415 (slow to import, and needed where something has gone wrong only)

        if rank >= self._ranks_per_host:
            return f"its process on {self._hosts[rank // self._ranks_per_host]} says nothing"
        try:
            status = psutil.Process(self._pids[rank]).status()
        except (psutil.Error, KeyError):
            return "its process is gone"
        if status == psutil.STATUS_STOPPED:
            return "its process is stopped by a signal (SIGSTOP), so that it has no stack to show"
        return f"its process is there ({status}) and says nothing"


def _as_error(report: Report) -> RankError | UserError:
    code = Exit(report["exit_code"])
    if code in (Exit.USAGE, Exit.PREFLIGHT):
        return UserError(report["message"])
    return RankError(
        f"rank {report['rank']} failed: {report['type']}: {report['message']}",
        report["rank"],
        report["traceback"],
        code,
    )


def _is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended stays in the table until its parent asks for it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123 (a hot path)
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
