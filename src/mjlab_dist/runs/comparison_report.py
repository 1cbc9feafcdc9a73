"""Write the picture or the page of a comparison."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mjlab_dist.runs.figure_files import DPI, save_png
from mjlab_dist.runs.outputs import write_output

if TYPE_CHECKING:
    from mjlab_dist.runs.compare import Curve

# Label of each horizontal axis
LABELS = {
    "steps": "control steps of all ranks",
    "time": "seconds of training",
    "iterations": "iterations",
}

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; background: white; }
@media screen and (prefers-color-scheme: dark) { svg { filter: invert(0.93) hue-rotate(180deg); } }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8886; padding: 0.25rem 0.75rem; text-align: left; }
"""


def write_report(
    file: str,
    curves: Mapping[str, Curve],
    *,
    metric: str,
    over: str,
    threshold: float | None,
    tables: Mapping[str, Sequence[Sequence[str]]],
) -> None:
    """Write a picture of the curves, or a page with curves and tables."""
    from matplotlib.figure import Figure  # an extra, and slow to import
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.0, 4.2), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        (line,) = axes.plot(curve.x, curve.middle, label=name, linewidth=1.5)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=line.get_color(), linewidth=0)
    if threshold is not None:
        axes.axhline(threshold, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel=LABELS[over], ylabel=metric.replace("_", " "))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    if file.endswith(".png"):
        save_png(figure, "--output", file)
        return
    data = io.StringIO()
    figure.savefig(data, format="svg")
    svg = data.getvalue()
    write_output("--output", file, _page(f"Comparison of {metric}", svg[svg.index("<svg") :], tables))


def _page(title: str, svg: str, tables: Mapping[str, Sequence[Sequence[str]]]) -> str:
    parts = [
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>\n{svg}",
    ]
    for name, (head, *rows) in tables.items():
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
        body = "\n".join(lines)
        parts.append(f"<h2>{html.escape(name)}</h2>\n<div><table>\n<tr>{cells}</tr>\n{body}\n</table></div>")
    return "\n".join(parts) + "\n"
