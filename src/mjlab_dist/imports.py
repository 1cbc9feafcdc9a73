"""Import the libraries of a rank quickly. Imports the standard library only until asked to."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar
from unittest import mock

T = TypeVar("T")

UNUSED = ("wandb", "neptune")
"""Packages that rsl_rl imports for its own writers of metrics, which no rank uses."""


@contextlib.contextmanager
def start_up() -> Iterator[None]:
    """Keep the garbage collector off while many modules are imported: it took a third of that time.

    The modules' objects then count as old. Otherwise the next collection, which is of young objects and frequent, would
    visit all of them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if gc.get_freeze_count() == 0:  # the user may have frozen objects
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.enable()


def import_learner() -> None:
    """Import torch, tensordict and rsl_rl without their unused parts; for a process that only trains.

    tensordict imports all of torch's compiler to mark a few functions for it, and rsl_rl imports Weights & Biases; both
    together take a third of the time of all imports. Without the marks torch.compile still works, and compiles those
    functions like any other. A process that belongs to the user imports everything as usual.
    """
    with start_up():
        import torch

        with (
            mock.patch.object(torch.compiler, "allow_in_graph", _unmarked),
            mock.patch.object(torch.compiler, "assume_constant_result", _unmarked),
            _absent(UNUSED),
        ):
            import rsl_rl.runners  # noqa: F401 (imports tensordict)


def _unmarked(function: T) -> T:
    return function


@contextlib.contextmanager
def _absent(names: Sequence[str]) -> Iterator[None]:
    """Have imports of packages fail as if they were not installed; those that are imported already stay."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] (Python documents None as "not importable")
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
