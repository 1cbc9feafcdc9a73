"""Errors that a user can cause, exit codes of the commands, and the words of messages.

The command line prints each error as one line, with the place in the user's code that raised it.
"""

from __future__ import annotations

import difflib
import enum
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

# Minimum similarity, from 0 to 1, between a mistyped name and a name that is suggested instead
MIN_SIMILARITY = 0.62

# Names that end with the typed text count as closest only if the text has at least this many characters
MIN_END = 3

# Maximum difference in similarity between the first suggestion and further suggestions
MAX_GAP = 0.1


def listed(items: Iterable[object], last: Literal["and", "or"] = "and") -> str:
    """Return items as a list in words.

    Example:
        >>> listed(["rows", "contacts", "pairs"])
        'rows, contacts and pairs'
    """
    texts = [str(item) for item in items]
    return f" {last} ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def counted(number: int, noun: str, several: str = "") -> str:
    """Return a number of things in words, such as ``1 rank`` or ``2 ranks``."""
    return f"{number} {noun if number == 1 else several or noun + 's'}"


def nearest(name: str, known: Iterable[str], max_names: int = 1) -> list[str]:
    """Return the known names that are closest to a mistyped one, the closest first; none if all are very different.

    Names that start or end with the typed text count as closest. Dashes in front of names are ignored.
    """
    typed = name.lstrip("-")
    matcher = difflib.SequenceMatcher()
    matcher.set_seq2(typed)
    similarity: dict[str, float] = {}
    for candidate in known:
        bare = candidate.lstrip("-")
        matcher.set_seq1(bare)
        ratio = matcher.ratio()
        if typed and bare.startswith(typed):
            ratio = 1.0
        elif len(typed) >= MIN_END and bare.endswith((f"_{typed}", f"-{typed}", f".{typed}")):
            # Names that end with the text follow those that start with it; among them, shorter names come first
            ratio = 1.0 - MAX_GAP * (1.0 - ratio)
        similarity[candidate] = ratio
    least = max(MIN_SIMILARITY, max(similarity.values(), default=0.0) - MAX_GAP)
    close = [candidate for candidate in similarity if similarity[candidate] >= least]
    return sorted(close, key=lambda candidate: (-similarity[candidate], candidate))[:max_names]


def did_you_mean(name: str, known: Iterable[str], otherwise: str, max_names: int = 1) -> str:
    """Return a question that suggests the known names closest to a mistyped one."""
    near = nearest(name, known, max_names)
    return f"did you mean {listed(near, 'or')}?" if near else otherwise


def printable(text: str) -> str:
    r"""Return a text on one line: line breaks and control characters become escapes such as \n."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def byte_size(num_bytes: float) -> str:
    """Return a number of bytes in a decimal unit, such as 3.1 MB; the number is less than 1000, except for GB."""
    for unit, size, digits in (("bytes", 1.0, 0), ("kB", 1e3, 1), ("MB", 1e6, 1)):
        number = f"{num_bytes / size:.{digits}f}"
        if float(number) < 1000:
            return f"{number} {unit}"
    return f"{num_bytes / 1e9:.1f} GB"


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

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the message without a traceback. IPython calls this method."""
        return [f"{type(self).__name__}: {self}"]


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


def describe(error: BaseException, reference: str) -> str:
    """Return the type, message and place of an error in one line."""
    place = place_of(error, reference)
    return named(type(error).__name__, _message(error)) + (f" ({place})" if place else "")


def named(kind: str, message: str) -> str:
    """Return the type and the message of an error; errors such as AssertionError may have no message."""
    return ": ".join(filter(None, (kind, message)))


def with_notes(error: BaseException) -> str:
    """Return the message of an error with its notes, such as the term that raised it, in one line."""
    return ", ".join(filter(None, [_message(error), *getattr(error, "__notes__", [])]))


def place_of(error: BaseException, reference: str) -> str:
    """Return the innermost place of an error in the user's package, such as ``my_ant/terms.py:12``.

    Returns:
        The place; empty if the package's code did not raise the error, for example because the package does not exist.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename)}:{error.lineno}"
    package = reference.partition(":")[0].partition(".")[0]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            place = f"{_short(frame.f_code.co_filename)}:{line}"
    return place


def _message(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return " ".join(text.split())


def _short(file: str) -> str:
    """Return the name of a file and its folder."""
    return "/".join(Path(file).parts[-2:])
