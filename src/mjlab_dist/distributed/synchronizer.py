"""Synchronization of the policy over ranks: reduction of gradients, and averaging of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Protocol

import torch

from mjlab_dist.config import SyncConfig
from mjlab_dist.config.terms import resolve
from mjlab_dist.distributed.group import sum_over_ranks, world_size
from mjlab_dist.errors import UserError

FORMATS = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Data types for gradient compression."""


class Synchronizer(Protocol):
    """Interface of a synchronization method.

    With several ranks, each rank creates an instance, without arguments, after it has joined the process group.

    Attributes:
        keeps_equal: Whether :meth:`reduce` leaves the same values on every rank, so that parameters never differ. If
            not, parameters and Adam's moments (its running means of gradients and their squares) are averaged when
            :meth:`due` returns True, and at the end of the run.
    """

    keeps_equal: bool

    def reduce(self, buffer: torch.Tensor) -> None:
        """Replace this rank's gradients with the gradients for the optimizer, in place.

        Every rank calls this method once per mini-batch.

        Args:
            buffer: (parameters + 1,) in fp32: all gradients of this rank's mini-batch. The last element is the mean KL
                divergence from the policy that collected the data, which the adaptive learning rate uses.
        """
        ...

    def due(self, iteration: int) -> bool:
        """Return whether to average parameters now. All ranks must return the same value.

        If ``keeps_equal`` is False, this method is called after every iteration; otherwise, it is never called.

        Args:
            iteration: Number of iterations done, including this one.
        """
        ...


class AllReduce:
    """Mean of all ranks' gradients, with one all-reduce per mini-batch.

    Compressed gradients have error feedback (Karimireddy et al. 2019, arXiv:1901.09847): the rounding error of each
    mini-batch is added to the gradients of the next one.

    Attributes:
        error: This rank's rounding error of the last mini-batch, in the shape of the buffer; None before the first
            mini-batch, and without compression.
    """

    keeps_equal = True

    def __init__(self, compression: str = "none") -> None:
        """Choose the data type of the all-reduce.

        Args:
            compression: A key of :data:`FORMATS`.
        """
        self._format = FORMATS[compression]
        self.error: torch.Tensor | None = None

    def reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer with its mean over ranks."""
        # Dividing before the sum avoids overflow in fp16.
        buffer /= world_size()
        if self._format is None:
            sum_over_ranks(buffer)
            return
        # After a resume with a different --fsdp-devices, the loaded error has the wrong shape: start with zero.
        if self.error is None or self.error.shape != buffer.shape:
            self.error = torch.zeros_like(buffer)
        self.error += buffer
        sent = self.error.to(self._format)
        self.error -= sent
        self.error[-1] = 0.0  # the last element is the KL divergence, not a gradient: no error feedback
        buffer.copy_(sum_over_ranks(sent))

    def due(self, iteration: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Return False: parameters are always equal on all ranks."""
        return False


class LocalUpdates:
    """Local SGD (Stich 2019, arXiv:1805.09767): ranks update separately, and parameters are averaged periodically."""

    keeps_equal = False

    def __init__(self, period: int) -> None:
        """Choose how often to average.

        Args:
            period: Number of iterations after which parameters are averaged again.
        """
        self._period = period

    def reduce(self, buffer: torch.Tensor) -> None:
        """Leave this rank's gradients unchanged."""

    def due(self, iteration: int) -> bool:
        """Return True every ``period`` iterations."""
        return iteration % self._period == 0


def make_synchronizer(config: SyncConfig) -> Synchronizer:
    """Return the synchronizer that a config selects, for the ranks of the process group.

    A user's class is instantiated only if there are several ranks: its constructor may need the process group.
    """
    make = None if config.synchronizer is None else find_synchronizer(config.synchronizer)
    if world_size() == 1:
        return AllReduce()
    if make is not None:
        made = make()
        _check(f"--sync.synchronizer {config.synchronizer}", made, "keeps_equal")
        return made
    return AllReduce(config.compression) if config.period == 1 else LocalUpdates(config.period)


def find_synchronizer(path: str) -> Callable[[], Synchronizer]:
    """Return the class of a user's synchronizer, without creating an instance.

    Args:
        path: The class, as ``package.module:Class``.

    Raises:
        UserError: If there is no such class, or it needs arguments or lacks a method of the protocol.
    """
    flag = f"--sync.synchronizer {path}"
    try:
        found = resolve(path)
        inspect.signature(found).bind()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(f"{flag}: {error}; give package.module:Class, a class without required arguments") from error
    _check(flag, found, "reduce", "due")
    return found


def _check(flag: str, found: object, *parts: str) -> None:
    for part in parts:
        if not hasattr(found, part):
            raise UserError(
                f"{flag}: the class has no {part}; implement all parts of the protocol "
                "mjlab_dist.distributed.synchronizer.Synchronizer"
            )
