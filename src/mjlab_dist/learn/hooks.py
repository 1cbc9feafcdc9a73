"""Hooks of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mjlab_dist.learn.metrics import Row, Sample
    from mjlab_dist.learn.runner import Runner


class Hook:
    """Base class of hooks. A rank's training loop calls the hooks in :attr:`Runner.hooks`."""

    def before_iteration(self, runner: Runner, iteration: int) -> None:
        """Run before the rollout.

        Args:
            runner: The training loop.
            iteration: The iteration that begins, from 1.
        """

    def after_iteration(self, runner: Runner, iteration: int, sample: Sample) -> None:
        """Run after the update, before metrics are reduced over ranks.

        Args:
            runner: The training loop.
            iteration: The iteration that has ended.
            sample: Measurements of this rank.
        """

    def columns(self, runner: Runner, iteration: int) -> Row:  # noqa: ARG002 (for subclasses)
        """Return columns to add to the row of an iteration. Every rank calls this after the metrics are known.

        Args:
            runner: The training loop.
            iteration: The iteration.
        """
        return {}
