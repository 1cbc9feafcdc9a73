"""pack: put a run into one file for others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from mjlab_dist.cli.console import EventPrinter, make_console
from mjlab_dist.cli.flags import by_flag, parse, split_name
from mjlab_dist.config import PackConfig
from mjlab_dist.errors import CheckError, UserError, byte_size, listed
from mjlab_dist.imports import import_learner
from mjlab_dist.messages import listening


def main(argv: Sequence[str], prog: str) -> None:
    """Pack a run, and print what the file contains. Exit with 1 if the exported policy gives wrong actions."""
    run, flags = split_name(argv)
    config = parse(PackConfig(), by_flag(flags), f"{prog} RUN")
    if run is None:
        raise UserError(f"no run is named; type {prog} RUN, where RUN is a run directory or latest")

    from mjlab_dist.policies.pack import find_source, pack  # --help does not need it

    source = find_source(run, config)
    import_learner()
    printer = EventPrinter(make_console(soft_wrap=True))
    print(f"Packing {source.checkpoint}", flush=True)
    try:
        with printer, listening(printer.listen):
            packed = pack(source, config)
    except CheckError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"Wrote {source.output} ({byte_size(source.output.stat().st_size)}): {listed(packed)}")
    print(f"Play: mjlab-dist play {source.config.task} --run {shlex.quote(str(source.output))} --viewer web")
