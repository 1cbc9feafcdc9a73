"""Commands that start ranks and wait for their results."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.errors import RankError
from mjlab_dist.messages import listening


@contextlib.contextmanager
def waiting_for_ranks(prog: str) -> Iterator[None]:
    """Print events on standard error. At a signal, end the ranks, remove temporary files, and exit."""
    from mjlab_dist.launch.signals import handled_signals  # --help does not need it

    # Handle SIGTERM and SIGHUP like Ctrl-C: end the ranks, remove temporary files, and exit.
    for signum in handled_signals() - {signal.SIGINT}:
        signal.signal(signum, lambda signum, _: sys.exit(128 + signum))
    try:
        with EventPrinter(make_console(stderr=True, soft_wrap=True)) as printer, listening(printer.listen):
            yield
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C; all processes have ended.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    except RankError as error:
        print(f"{error.report}{prog}: {error}", file=sys.stderr)
        raise
