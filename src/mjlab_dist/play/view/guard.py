"""Report the error of one input, so that the loop that serves all inputs goes on."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from mjlab_dist.errors import UserError
from mjlab_dist.messages import emit
from mjlab_dist.wording import printable

_reported: set[tuple[object, ...]] = set()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Report an error of the block, and go on after the block."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (any input may be wrong in a way that nobody expects)
        report(error)


def report(error: BaseException) -> None:
    """Print a warning with an error, once for each line of code that raises it."""
    place = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    kind = (type(error), *place)
    if kind not in _reported:
        _reported.add(kind)
        emit("warning", text=f"the viewer continues after an error: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """Return the message of an error, which may quote any file or client, as one short line."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return printable(text)[:500]
