"""Faults on purpose, to see what a run does about them: ``MJLAB_DIST_FAULT=<rank>:<iteration>:<kind>``. Standard library only.

Several, separated by commas, are for one attempt each: the first for the run's start, the second for its first restart, and so on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed

VARIABLE = "MJLAB_DIST_FAULT"

ATTEMPT = "MJLAB_DIST_ATTEMPT"
"""Variable by which a launch tells its ranks which attempt they are, from 0."""

Kind = Literal["raise", "sigkill", "sigstop", "exit", "skip_collective", "nan", "corrupt", "slow"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong, where and when."""

    rank: int
    """Global rank."""
    iteration: int
    """In the first iteration of the attempt that has this number, or a higher one."""
    kind: Kind
    """raise: an exception; sigkill, sigstop: the signal; exit: the process ends without a word; skip_collective: one gradient reduction is left out; nan: physics leaves a velocity of one env that is not a number; corrupt: one bit of a weight is flipped; slow: the iteration takes five seconds longer."""


def read_fault(environ: Mapping[str, str]) -> Fault | None:
    """The fault that the environment asks of this attempt.

    Args:
        environ: The process's environment.

    Raises:
        UserError: If it cannot be read.
    """
    text = environ.get(VARIABLE)
    if not text:
        return None
    faults = [_parse(part, text) for part in text.split(",")]
    attempt = int(environ.get(ATTEMPT, "0"))
    return faults[attempt] if attempt < len(faults) else None


def _parse(part: str, text: str) -> Fault:
    rank, _, rest = part.strip().partition(":")
    iteration, _, kind = rest.partition(":")
    known = get_args(Kind)
    if not rank.isdecimal() or not iteration.isdecimal() or kind not in known:
        raise UserError(f"{VARIABLE}={text}: write <rank>:<iteration>:<kind>, with a kind of {listed(known, 'or')}")
    return dataclasses.replace(Fault(rank=int(rank), iteration=int(iteration), kind="raise"), kind=kind)
