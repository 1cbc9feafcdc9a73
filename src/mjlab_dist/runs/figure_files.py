"""Write figures of matplotlib, an optional package, to files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mjlab_dist.machine.packages import require_extra
from mjlab_dist.runs.outputs import check_output, write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Pixels per inch of a figure
DPI = 150


def check_figure_file(flag: str, file: str, suffixes: Sequence[str]) -> None:
    """Raise if a figure cannot be drawn, or cannot be written to a file."""
    check_output(flag, file, suffixes)
    require_extra("plots", f"{flag} {file}")


def save_png(figure: Figure, flag: str, file: str) -> None:
    """Write a figure as a PNG file, atomically."""
    data = io.BytesIO()
    figure.savefig(data, format="png")
    write_output(flag, file, data.getvalue())
