"""The errors that a user can cause, and the exit codes of the commands. The command line prints each error as one line."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """How a command ended, for scripts and schedulers."""

    DONE = 0
    """All is well."""
    FAILED = 1
    """Training failed, or a check did."""
    USAGE = 2
    """The command line or the config has to be mended."""
    PREFLIGHT = 3
    """This machine is not ready: doctor says more."""
    NUMERICS = 4
    """A number was not finite, or ranks that have to be equal differed. Starting again would not help."""
    INFRASTRUCTURE = 5
    """A rank was killed or hung, after all restarts."""
    RESUMABLE = 75
    """Stopped in order, with a checkpoint: --resume goes on."""
    FORCED = 130
    """Ended at once by Ctrl-C."""


class UserError(ValueError):
    """Something the user typed or set that cannot work.

    The message is one line that names the flag (or file, or variable), its value, and what would work instead.
    """

    exit_code = Exit.USAGE


class PreflightError(UserError):
    """Something of this machine, not of the command line, that would end the run: a full disk, a GPU in use.

    The message is one line that names it, and the mend.
    """

    exit_code = Exit.PREFLIGHT


class RankError(RuntimeError):
    """A rank ended before its work was done.

    Attributes:
        rank: The global rank that failed first, or None where no rank left a report (it was killed, say).
        report: The traceback of that rank, ready to print; empty where there is none.
        exit_code: What the command exits with.
    """

    def __init__(self, message: str, rank: int | None = None, report: str = "", exit_code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.rank = rank
        self.report = report
        self.exit_code = exit_code
        if report:
            self.add_note(report)  # Python prints it below the message, for who trains from Python


class DesyncError(RuntimeError):
    """Ranks that have to hold the same parameters do not.

    The message is one line that names the ranks and the first tensor that differs.
    """

    exit_code = Exit.NUMERICS


class LostRankError(RuntimeError):
    """Another rank has ended, is silent, or sends what does not belong to the sum at hand; that rank knows more.

    The message is one line that names it.
    """


class NonFiniteError(FloatingPointError):
    """A number of physics, an observation, a reward or a loss is not finite.

    The message is one line that names what it is of, the envs and the rank.

    Attributes:
        of_another_rank: Whether it was another rank's number, and this one only stops with it.
    """

    exit_code = Exit.NUMERICS

    def __init__(self, message: str, *, of_another_rank: bool = False) -> None:
        super().__init__(message)
        self.of_another_rank = of_another_rank


class HangError(RuntimeError):
    """A rank's training loop has not gone on for longer than it may."""

    exit_code = Exit.INFRASTRUCTURE


def exit_code_of(error: BaseException) -> Exit:
    """What a command that ends by an error exits with.

    Args:
        error: Any error; those of this package know.
    """
    return getattr(error, "exit_code", Exit.FAILED)
