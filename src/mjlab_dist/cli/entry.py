"""Entry points of the installed commands. They handle Ctrl-C before anything else is imported.

Otherwise, Ctrl-C during an import would make Python print a traceback.
"""

from __future__ import annotations

# _signal instead of signal, because signal imports enum, which takes longer than everything else in this module
import _signal as signal  # pyright: ignore[reportMissingImports]
import os


def train() -> None:
    """Entry point of ``train``."""
    end_at_interrupt()
    from mjlab_dist.cli import main  # Ctrl-C is handled first

    main.train()


def play() -> None:
    """Entry point of ``play``."""
    end_at_interrupt()
    from mjlab_dist.cli import main  # Ctrl-C is handled first

    main.play()


def list_tasks() -> None:
    """Entry point of ``list-tasks``."""
    end_at_interrupt()
    from mjlab_dist.cli import main  # Ctrl-C is handled first

    main.list_tasks()


def umbrella() -> None:
    """Entry point of ``mjlab-dist``."""
    end_at_interrupt()
    from mjlab_dist.cli import main  # Ctrl-C is handled first

    main.umbrella()


def end_at_interrupt() -> None:
    """Make Ctrl-C end this process at once, without a traceback. A process that ignores Ctrl-C keeps ignoring it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end)


def raise_at_interrupt() -> None:
    """Make the first Ctrl-C raise KeyboardInterrupt, so that temporary files are removed.

    The second Ctrl-C ends this process immediately. A process that ignores Ctrl-C keeps ignoring it.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _raise)


def _end(*_: object) -> None:
    os._exit(128 + signal.SIGINT)


def _raise(*_: object) -> None:
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt
