"""How ranks keep one policy: what happens to gradients before every optimizer step, and when parameters are averaged."""

from __future__ import annotations

from typing import Protocol

import torch

from mjlab_dist.config import SyncConfig
from mjlab_dist.config.references import resolve
from mjlab_dist.distributed.group import sum_over_ranks, world_size
from mjlab_dist.errors import UserError

FORMATS = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Number formats that gradients can travel in."""


class Synchronizer(Protocol):
    """What a way to synchronise has to offer. One is made on every rank, without arguments; on a single rank it is not used.

    Attributes:
        keeps_equal: Whether :meth:`reduce` leaves the same values on every rank, so that parameters never differ. Where it does
            not, parameters and Adam's moments are averaged whenever :meth:`due` says so, and before every checkpoint.
    """

    keeps_equal: bool

    def reduce(self, buffer: torch.Tensor) -> None:
        """Turn this rank's gradients into those that the optimizer is to use, in place. Called once a mini-batch, by every rank.

        Args:
            buffer: (parameters + 1,) in fp32: all gradients of this rank's mini-batch, and in the last slot the mean KL divergence
                of the policy from the one that collected the data, which the learning rate adapts to.
        """
        ...

    def due(self, iteration: int) -> bool:
        """Whether parameters are to be averaged now; asked after every iteration, and only where ``keeps_equal`` is False.

        Args:
            iteration: Iterations done, this one included; the same on every rank, which must all answer the same.
        """
        ...


class AllReduce:
    """The mean of all ranks' gradients, by one all-reduce a mini-batch."""

    keeps_equal = True

    def __init__(self, compression: str = "none") -> None:
        """Choose the format.

        Args:
            compression: A key of :data:`FORMATS`.
        """
        self._format = FORMATS[compression]

    def reduce(self, buffer: torch.Tensor) -> None:
        """Replace the buffer by its mean over ranks."""
        buffer /= world_size()
        if self._format is None:
            sum_over_ranks(buffer)
        else:
            buffer.copy_(sum_over_ranks(buffer.to(self._format)))

    def due(self, iteration: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Never: parameters are equal."""
        return False


class LocalUpdates:
    """Local SGD (Stich 2019, arXiv:1805.09767): every rank learns by itself, and parameters are averaged now and then."""

    keeps_equal = False

    def __init__(self, period: int) -> None:
        """Choose how often.

        Args:
            period: Iterations between averagings.
        """
        self._period = period

    def reduce(self, buffer: torch.Tensor) -> None:
        """Leave this rank's gradients as they are."""

    def due(self, iteration: int) -> bool:
        """Every ``period`` iterations."""
        return iteration % self._period == 0


def make_synchronizer(config: SyncConfig) -> Synchronizer:
    """The synchronizer that a config names.

    Raises:
        UserError: If there is no such class, or it lacks a part of the protocol.
    """
    if config.synchronizer is not None:
        return _load(config.synchronizer)
    return AllReduce(config.compression) if config.period == 1 else LocalUpdates(config.period)


def _load(path: str) -> Synchronizer:
    try:
        made = resolve(path)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError(
            f"--sync.synchronizer {path}: {error}; write package.module:Class, made without arguments"
        ) from error
    missing = [part for part in ("keeps_equal", "reduce", "due") if not hasattr(made, part)]
    if missing:
        raise UserError(f"--sync.synchronizer {path}: has no {missing[0]}; see mjlab_dist.distributed.synchronizer")
    return made
