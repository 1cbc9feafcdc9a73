"""Files of figures that matplotlib, an optional package, draws."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mjlab_dist.atomic import write_atomically
from mjlab_dist.errors import UserError
from mjlab_dist.wording import listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
"""Pixels per inch of a figure."""


def check_figure_file(flag: str, file: str, suffixes: Sequence[str]) -> None:
    """Raise if a figure cannot be drawn, or cannot be written to a file.

    Args:
        flag: The flag that names the file, for the message.
        file: The file.
        suffixes: Possible ends of its name, such as ``.png``.

    Raises:
        UserError: One line that names the flag, its value and the fix.
    """
    if Path(file).suffix not in suffixes:
        raise UserError(f"{flag} {file}: give a file that ends in {listed(suffixes, 'or')}")
    if not Path(file).resolve().parent.is_dir():
        raise UserError(f"{flag} {file}: there is no directory {Path(file).parent}; create it first")
    try:
        import matplotlib  # noqa: F401, PLC0415 (an extra)
    except ImportError:
        raise UserError(f"{flag} {file}: needs the package matplotlib; install mjlab-dist[plots]") from None


def save_png(figure: Figure, file: str) -> None:
    """Write a figure as a PNG file, all at once.

    Args:
        figure: The figure.
        file: The file.
    """
    data = io.BytesIO()
    figure.savefig(data, format="png")
    write_atomically(Path(file), data.getvalue())
