"""compare: learning curves, final values and differences of runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import by_flag, parse
from mjlab_dist.config import CompareConfig
from mjlab_dist.errors import UserError, printable
from mjlab_dist.messages import listening
from mjlab_dist.runs.outputs import check_figure_file

if TYPE_CHECKING:
    from mjlab_dist.runs.compare import Summary

# A table; the first row contains the titles of the columns
Rows = list[list[str]]


def main(argv: Sequence[str], prog: str) -> None:
    """Compare runs, print tables, and write a picture or a page if requested."""
    # Runs and flags
    first = next((i for i, word in enumerate(argv) if word.startswith("-")), len(argv))
    words, flags = argv[:first], argv[first:]
    config = parse(CompareConfig(), by_flag(flags), f"{prog} RUN...")
    if not words:
        raise UserError(f"no run is named; type {prog} RUN..., where each RUN is the directory of a run or of a task")

    from mjlab_dist.runs.compare import (  # --help does not need NumPy
        config_differences,
        curve,
        find_runs,
        origin_differences,
        read_groups,
        summarize,
        write_report,
    )

    if config.output is not None:
        check_figure_file("--output", config.output, [".png", ".html"])

    # Final values of the runs, and differences between them
    with EventPrinter(make_console(stderr=True, soft_wrap=True)) as printer, listening(printer.listen):
        groups = read_groups(find_runs(words, config.log_root), config.metric, of_ranks=config.ranks)
    summaries = [summarize(group, config.metric, config.threshold) for group in groups]
    configs = config_differences([group.runs[0] for group in groups])
    origins = origin_differences(groups)

    # Report
    names = [group.name for group in groups]
    tables = {f"Final {config.metric}": _summaries(summaries)}
    if config.threshold is not None:
        tables[f"When {config.metric} first reached {config.threshold:g}"] = _reached(summaries)
    if configs:
        tables["Differences in the configs"] = _differences(names, configs)
    if origins:
        tables["Differences in versions, commits and devices"] = _differences(names, origins)
    if config.json:
        plain = {"groups": [dataclasses.asdict(one) for one in summaries], "configs": configs, "origins": origins}
        print(json.dumps({"metric": config.metric, **plain}))
    else:
        console = make_console()
        for title, (head, *rows) in tables.items():
            table = Table(*map(printable, head), title=f"\n{title}", title_justify="left")
            for row in rows:
                table.add_row(*map(printable, row))
            console.print(table)
    if config.output is not None:
        curves = {group.name: curve(group, config.metric, config.over, config.band) for group in groups}
        how = {"metric": config.metric, "over": config.over, "threshold": config.threshold}
        write_report(config.output, curves, tables=tables, **how)
        print(f"Written: {config.output}", file=sys.stderr)


def _summaries(summaries: Sequence[Summary]) -> Rows:
    rows = [["group", "runs", "mean ± std", "interquartile mean", "steps", "seconds"]]
    for one in summaries:
        spread = "" if one.std is None else f" ± {one.std:.3g}"
        interval = "" if one.iqm_low is None else f" ({one.iqm_low:.4g} to {one.iqm_high:.4g})"
        figures = (f"{one.mean:.4g}{spread}", f"{one.iqm:.4g}{interval}", f"{one.steps:,.0f}", f"{one.seconds:,.0f}")
        rows.append([one.name, str(len(one.runs)), *figures])
    return rows


def _reached(summaries: Sequence[Summary]) -> Rows:
    rows = [["group", "runs that reach it", "after steps", "after seconds"]]
    for one in summaries:
        assert one.reached is not None
        means = ("-" if mean is None else f"{mean:,.0f}" for mean in (one.reached.steps, one.reached.seconds))
        rows.append([one.name, f"{one.reached.num_runs} of {len(one.runs)}", *means])
    return rows


def _differences(names: Sequence[str], differences: dict[str, list[Any]]) -> Rows:
    rows = [[name, *("-" if one is None else str(one) for one in each)] for name, each in differences.items()]
    return [["", *names], *rows]
