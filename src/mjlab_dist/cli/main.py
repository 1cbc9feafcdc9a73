"""Entry points: train, play and list-tasks, and mjlab-dist, which has these and the less frequent commands."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import NoReturn

from mjlab_dist.distributed import outside_launcher
from mjlab_dist.distributed.plan import number_by_bus
from mjlab_dist.errors import Exit, RankError, UserError
from mjlab_dist.wording import did_you_mean, listed

SUMMARIES = {
    "train": "train a policy",
    "play": "show what a trained policy does",
    "check": "check a task: its terms, replays, seeds, resuming, buffers",
    "verify": "check that the ranks of this machine train one policy",
    "doctor": "check whether this machine can train",
    "list-tasks": "print the installed tasks",
    "new-task": "create a task from your own MJCF",
    "size-buffers": "measure how large njmax and nconmax of a task must be",
    "completion": "print a script that completes these commands in bash, zsh or fish",
}
"""What each command does."""


def train() -> None:
    """Entry point of ``train``."""
    _run("train", sys.argv[1:], "train")


def play() -> None:
    """Entry point of ``play``."""
    _run("play", sys.argv[1:], "play")


def list_tasks() -> None:
    """Entry point of ``list-tasks``."""
    _run("list-tasks", sys.argv[1:], "list-tasks")


def umbrella() -> None:
    """Entry point of ``mjlab-dist``, with all commands. Other packages install a ``train`` too, which may hide ours."""
    argv = sys.argv[1:]
    if argv and argv[0] in SUMMARIES:
        _run(argv[0], argv[1:], f"mjlab-dist {argv[0]}")
        return
    lines = [f"  {name:<12} {summary}" for name, summary in SUMMARIES.items()]
    usage = "\n".join(["usage: mjlab-dist COMMAND ...", "", *lines])
    if not argv or argv[0] in ("-h", "--help"):
        print(usage)
        sys.exit(Exit.DONE if argv else Exit.USAGE)
    near = did_you_mean(argv[0], SUMMARIES, f"use {listed(SUMMARIES, 'or')}")
    print(f"mjlab-dist: unknown command {argv[0]}: {near}", file=sys.stderr)
    sys.exit(Exit.USAGE)


def share_cores(environ: MutableMapping[str, str]) -> None:
    """Let torch's idle threads sleep instead of spinning, here and in child processes. Call it before importing torch.

    GNU OpenMP spins for milliseconds. Next to another busy process, training then takes twice as long.

    Args:
        environ: The process's environment. A setting that the user has made is kept.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys():
        environ["GOMP_SPINCOUNT"] = "1000"


def _run(command: str, argv: Sequence[str], prog: str) -> None:
    share_cores(os.environ)
    number_by_bus(os.environ)
    try:
        _command(command)(argv, prog)
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        _leave(error.exit_code)
    except RankError as error:
        _leave(error.exit_code)
    except BrokenPipeError:
        # The reader of the output has closed it (`train --help | head`), so no error can be printed.
        sys.stderr.close()
        sys.exit(Exit.FAILED)


def _command(name: str) -> Callable[[Sequence[str], str], None]:
    """Return a command's function. Only its module is imported, to start fast."""
    if name == "train":
        from mjlab_dist.cli.train import main  # noqa: PLC0415
    elif name == "play":
        from mjlab_dist.cli.play import main  # noqa: PLC0415
    elif name == "check":
        from mjlab_dist.cli.check import main  # noqa: PLC0415
    elif name == "verify":
        from mjlab_dist.cli.verify import main  # noqa: PLC0415
    elif name == "doctor":
        from mjlab_dist.cli.doctor import main  # noqa: PLC0415
    elif name == "new-task":
        from mjlab_dist.cli.new_task import main  # noqa: PLC0415
    elif name == "size-buffers":
        from mjlab_dist.cli.size_buffers import main  # noqa: PLC0415
    elif name == "completion":
        from mjlab_dist.cli.completion import main  # noqa: PLC0415
    else:
        from mjlab_dist.cli.list_tasks import main  # noqa: PLC0415
    return main


def _leave(code: Exit) -> NoReturn:
    """Exit after an error. If torchrun or SLURM started this process, skip the interpreter's shutdown.

    The shutdown aborts NCCL's communicators, which may wait for ranks that wait for this one.
    """
    if outside_launcher(os.environ):
        with contextlib.suppress(OSError):  # the reader of the output may have gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
