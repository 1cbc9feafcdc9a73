"""Errors that a user can cause, and exit codes of the commands. The command line prints each error as one line."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Exit(enum.IntEnum):
    """Exit codes of the commands, for scripts and schedulers."""

    DONE = 0
    """Success."""
    FAILED = 1
    """Training or a check failed."""
    USAGE = 2
    """The command line or the config is invalid."""
    PREFLIGHT = 3
    """This machine, or one of --hosts, is not ready; the command doctor shows why."""
    NUMERICS = 4
    """A number was not finite, a buffer of the physics was too small, or parameters differed between ranks. A restart
    would not help."""
    INFRASTRUCTURE = 5
    """A rank was killed or stopped making progress, and the run was not restarted."""
    RESUMABLE = 75
    """Stopped on request, after a checkpoint was written: use --resume to continue."""
    FORCED = 130
    """Ended at once by the second Ctrl-C, or by the first Ctrl-C if there was nothing to save yet."""


class UserError(ValueError):
    """Invalid input from the user: a flag, config, file or environment variable.

    The message is one line with the flag (or file, or variable), its value, and what would work instead.
    """

    exit_code = Exit.USAGE


class PreflightError(UserError):
    """Problem with a machine (not with the command line) that would end the run, such as a full disk or a GPU in use.

    The message is one line with the problem and the fix.
    """

    exit_code = Exit.PREFLIGHT


class CheckError(RuntimeError):
    """A task failed checks. The message has one line per failed check."""

    exit_code = Exit.FAILED


class RankError(RuntimeError):
    """A rank failed, hung or was killed.

    Attributes:
        rank: Global rank that failed first; None if it is unknown, for example if several ranks were killed.
        report: Traceback of that rank, ready to print; empty if there is none.
        exit_code: Exit code of the command.
        may_pass: Whether a restart may help.
    """

    def __init__(
        self,
        message: str,
        rank: int | None = None,
        report: str = "",
        exit_code: Exit = Exit.FAILED,
        *,
        may_pass: bool = True,
    ) -> None:
        super().__init__(message)
        self.may_pass = may_pass and exit_code is not Exit.NUMERICS
        self.rank = rank
        self.report = report
        self.exit_code = exit_code
        if report:
            self.add_note(report)  # Python prints notes below the message, for callers of mjlab_dist.train


class TakenOverError(RuntimeError):
    """Another launch (one start of ``train``) trains this run now, so this launch must not write any more files.

    The message is one line with the run and the other launch.
    """

    exit_code = Exit.FAILED


class DiskFullError(OSError):
    """No space is left for a file. A restart would not help.

    The message is one line with the file or its disk, and the fix.
    """

    exit_code = Exit.FAILED


class DesyncError(RuntimeError):
    """Parameters differ between ranks that must hold the same values.

    The message is one line with the ranks and the first tensor that differs.
    """

    exit_code = Exit.NUMERICS


class LostRankError(RuntimeError):
    """Another rank has ended, sends nothing, or sends a tensor of another size than this rank's.

    The report of the other rank contains the cause.

    The message is one line that names the other rank.

    Attributes:
        sum_bytes: Size in bytes of the tensor that this rank was summing; None if it was not summing.
    """

    sum_bytes: int | None = None


class NonFiniteError(FloatingPointError):
    """A number in the physics, an observation, a reward or a loss is not finite.

    The message is one line with the source of the number, the envs and the rank.

    Attributes:
        of_another_rank: Whether the number belongs to another rank. This rank then stops only because that rank stops.
    """

    exit_code = Exit.NUMERICS

    def __init__(self, message: str, *, of_another_rank: bool = False) -> None:
        super().__init__(message)
        self.of_another_rank = of_another_rank


class BufferOverflowError(RuntimeError):
    """Contacts or constraint rows did not fit into their buffers, and ``--env.sim.on-overflow`` is not warn.

    The message is one line with the buffers, the sizes that were needed, and the flags that set these sizes.

    Attributes:
        larger: Buffer sizes to restart with. The keys are fields of SimConfig. Empty if the run must end.
    """

    exit_code = Exit.NUMERICS

    def __init__(self, message: str, larger: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.larger = dict(larger or {})


class HangError(RuntimeError):
    """A rank's training loop has completed no iteration within the timeout."""

    exit_code = Exit.INFRASTRUCTURE


def exit_code_of(error: BaseException) -> Exit:
    """Return the exit code of a command that ends with an error.

    Args:
        error: Any error. Errors of this package define an exit code; for all other errors, the exit code is 1.
    """
    return getattr(error, "exit_code", Exit.FAILED)
