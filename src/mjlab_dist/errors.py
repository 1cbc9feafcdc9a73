"""The errors that a user can cause. The command line prints each as one line."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user typed or set that cannot work.

    The message is one line that names the flag (or file, or variable), its value, and what would work instead.
    """


class RankError(RuntimeError):
    """A rank ended before its work was done.

    Attributes:
        rank: The global rank that failed first, or None where no rank left a report (it was killed, say).
        report: The traceback of that rank, ready to print; empty where there is none.
    """

    def __init__(self, message: str, rank: int | None = None, report: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.report = report
        if report:
            self.add_note(report)  # Python prints it below the message, for who trains from Python


class DesyncError(RuntimeError):
    """Ranks that have to hold the same parameters do not.

    The message is one line that names the ranks and the first tensor that differs.
    """
