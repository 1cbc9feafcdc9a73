"""watch: show a run in the browser, also while it trains."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import by_flag, parse, split_name
from mjlab_dist.config import WatchConfig
from mjlab_dist.config.limits import validate_limits
from mjlab_dist.errors import Exit, UserError
from mjlab_dist.imports import import_learner, require_extra
from mjlab_dist.messages import listening
from mjlab_dist.runs.run_dir import find_any_run, read_config_file


def main(argv: Sequence[str], prog: str) -> None:
    """Serve the page of a run until Ctrl-C, and end the process."""
    run, flags = split_name(argv)
    config = parse(WatchConfig(), by_flag(flags), f"{prog} [RUN]")
    validate_limits(config)
    require_extra("viewer", "the page in the browser")
    run = run or "latest"
    run_dir = find_any_run(config.log_root, run)
    if run_dir.is_file():
        show = f"play TASK --run {shlex.quote(run)} --viewer web"
        raise UserError(f"{run}: is a pack, but watch needs a run; show it with {show}")
    train_config = read_config_file(run_dir, trust=config.trust, uses_ssh=False)
    print(f"Watching {run_dir}", flush=True)

    from mjlab_dist.policies.view.show import watch  # --help does not need it

    import_learner()
    printer = EventPrinter(make_console(soft_wrap=True))
    with printer, listening(printer.listen):
        watch(run_dir, train_config, config)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(Exit.DONE)  # without waiting for open pages to close
