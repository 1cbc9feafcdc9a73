"""Fault injection, to test how a run handles faults: ``MJLAB_DIST_FAULT=<rank>:<iteration>:<kind>``.

Several faults, separated by commas, apply to one attempt each: the first to the start of the run, the second to its
first restart, and so on. Imports the standard library only.
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
"""Environment variable with the number of the attempt, counted from 0. The launcher sets it for its ranks."""

Kind = Literal["raise", "sigkill", "sigstop", "exit", "skip_collective", "nan", "corrupt", "slow"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Kind of fault, and the rank and iteration where it happens."""

    rank: int
    """Global rank."""
    iteration: int
    """Iteration in which the fault happens. If the attempt starts after this iteration, the fault happens in the first
    iteration of the attempt."""
    kind: Kind
    """Kind of fault.

    - raise: raise an exception
    - sigkill, sigstop: send the signal to the rank's own process
    - exit: end the process without a report
    - skip_collective: skip one gradient reduction
    - nan: set a velocity of one env to NaN in the physics
    - corrupt: flip one bit of a weight
    - slow: make the iteration five seconds longer
    """


def read_fault(environ: Mapping[str, str]) -> Fault | None:
    """Return the fault that the environment variable requests for this attempt, if any.

    Raises:
        UserError: If the value of the variable has the wrong format.
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
        raise UserError(f"{VARIABLE}={text}: write <rank>:<iteration>:<kind>, where <kind> is {listed(known, 'or')}")
    return dataclasses.replace(Fault(rank=int(rank), iteration=int(iteration), kind="raise"), kind=kind)
