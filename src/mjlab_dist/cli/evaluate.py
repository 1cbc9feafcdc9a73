"""evaluate: measure a trained policy over many episodes."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mjlab_dist.cli.console import make_console, waiting_for_ranks
from mjlab_dist.cli.flags import Group, by_flag, known_task, parse, split_task, take_env
from mjlab_dist.cli.play import chosen_run
from mjlab_dist.config import EvaluateConfig, PlayConfig
from mjlab_dist.errors import Exit

if TYPE_CHECKING:
    from mjlab_dist.policies.evaluate import Estimate, Evaluated


def main(argv: Sequence[str], prog: str) -> None:
    """Evaluate a policy, print the results, and exit with 1 if the mean return is below ``--min-return``."""
    # Flags
    task, flags = split_task(argv)
    changes, flags = take_env(_joined(by_flag(flags), "--vary"))
    config = parse(EvaluateConfig(), flags, f"{prog} {task or 'TASK'}")
    task = known_task(task, prog)

    from mjlab_dist.policies.evaluate import check, check_plot, evaluate, plot  # --help does not need it

    check(config)
    if config.plot is not None:
        check_plot(config.plot, len(config.vary))

    # Choose the checkpoint and evaluate it
    with waiting_for_ranks(prog):
        same = ("run", "checkpoint", "disturbances", "seed", "log_root", "trust")
        chosen = PlayConfig(**{name: getattr(config, name) for name in same})
        train_config, checkpoint = chosen_run(task, chosen, prog, changes)
        results = evaluate(train_config, checkpoint, config)

    # Report
    if config.json:
        plain = list(map(_plain, results))
        print(json.dumps({"task": task, "checkpoint": str(checkpoint), "results": plain}))
    else:
        _show(results, make_console())
    if config.plot is not None:
        plot(results, f"{task}, {checkpoint.stem}", config.plot)
        print(f"Plot: {config.plot}", file=sys.stderr)
    if config.min_return is not None:
        means = [result.columns["return"].mean for result in results]
        if low := [mean for mean in means if not mean >= config.min_return]:  # also true for NaN
            print(f"{prog}: the mean return is {low[0]:.6g}, below --min-return {config.min_return:g}", file=sys.stderr)
            sys.exit(Exit.FAILED)


def _joined(groups: Sequence[Group], flag: str) -> list[Group]:
    """Combine all uses of a flag into one with all words, because tyro takes only the last."""
    words = [word for name, given in groups if name == flag for word in given]
    rest = [group for group in groups if group[0] != flag]
    return [*rest, (flag, words)] if len(rest) < len(groups) else rest


def _plain(result: Evaluated) -> dict[str, object]:
    """Return a result as plain data, with None in place of NaN, which JSON does not have."""
    columns = {
        name: {end: value if value is None or math.isfinite(value) else None for end, value in vars(estimate).items()}
        for name, estimate in result.columns.items()
    }
    return {**dataclasses.asdict(result), "columns": columns}


def _show(results: Sequence[Evaluated], console: Console) -> None:
    """Print all columns of the results, or only the main columns if ``--vary`` is given."""
    if results[0].varied:
        console.print(_grid(results))
    else:
        console.print(_columns(results))


def _columns(results: Sequence[Evaluated]) -> Table:
    count = results[0].num_episodes
    table = Table()
    table.add_column(f"{count} episode{'s' if count > 1 else ''}", no_wrap=True)
    if len(results) == 1:
        table.add_column("mean", justify="right")
        table.add_column("95% interval", justify="right")
        for name, estimate in results[0].columns.items():
            table.add_row(name, *_cells(estimate))
        return table
    for result in results:
        table.add_column(f"{result.actions} actions", justify="right")
    for name in results[0].columns:
        table.add_row(name, *(_with_margin(result.columns[name]) for result in results))
    return table


def _grid(results: Sequence[Evaluated]) -> Table:
    has_kinds = len({result.actions for result in results}) > 1
    table = Table(*results[0].varied, *(["actions"] if has_kinds else []))
    for title in ("mean return", "95% interval", "mean length", "ended early"):
        table.add_column(title, justify="right")
    for result in results:
        values = [f"{value:.4g}" for value in result.varied.values()]
        mean, interval = _cells(result.columns["return"])
        limit = result.columns["termination/time_limit"].mean
        length = f"{result.columns['length'].mean:.4g}"
        table.add_row(*values, *([result.actions] if has_kinds else []), mean, interval, length, f"{1 - limit:.1%}")
    return table


def _cells(estimate: Estimate) -> tuple[str, str]:
    interval = "" if estimate.low is None else f"{estimate.low:.4g} to {estimate.high:.4g}"
    return f"{estimate.mean:.4g}", interval


def _with_margin(estimate: Estimate) -> str:
    """Return a mean with half the width of its confidence interval."""
    margin = "" if estimate.high is None else f" ± {estimate.high - estimate.mean:.3g}"
    return f"{estimate.mean:.4g}{margin}"
