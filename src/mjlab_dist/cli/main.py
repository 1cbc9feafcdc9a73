"""The installed commands: train, play, list-tasks, and mjlab-dist, which has all commands as subcommands."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, MutableMapping, Sequence
from importlib.metadata import version

from mjlab_dist.cli.entry import raise_at_interrupt
from mjlab_dist.config import registry
from mjlab_dist.distributed import outside_launcher
from mjlab_dist.distributed.rank import number_by_bus
from mjlab_dist.errors import Exit, RankError, UserError, did_you_mean, listed, printable
from mjlab_dist.imports import prepare_opengl
from mjlab_dist.launch.output import keep_streams_usable

# What each command does
SUMMARIES = {
    "train": "train a policy",
    "play": "show what a trained policy does",
    "evaluate": "measure a trained policy over many episodes",
    "export": "write a trained policy as ONNX and TorchScript files, and check them",
    "pack": "put a run and a model card into one file that you can share",
    "compare": "compare the curves, final values and configs of runs",
    "demo": "show a small trained robot in the browser, and steer it",
    "watch": "show a run's robot and curves in the browser, also while it trains",
    "check": "check a task: its terms, physics, seeds, resuming and buffer sizes",
    "verify": "check that all ranks train the same policy, and measure how fast they are",
    "doctor": "check whether this machine can train",
    "list-tasks": "print the installed tasks",
    "new-task": "create a task from your own MJCF",
    "size-buffers": "measure the buffer sizes njmax and nconmax that a task needs",
}

# Packages that print a warning if some of their objects still exist when the interpreter shuts down
REPORT_LEAKS = {"onnx", "triton"}


def train() -> None:
    """Run ``train``."""
    keep_streams_usable()
    _run("train", sys.argv[1:], "train")


def play() -> None:
    """Run ``play``."""
    keep_streams_usable()
    _run("play", sys.argv[1:], "play")


def list_tasks() -> None:
    """Run ``list-tasks``."""
    keep_streams_usable()
    _run("list-tasks", sys.argv[1:], "list-tasks")


def umbrella() -> None:
    """Run ``mjlab-dist``, which has all commands. It works even if another package's ``train`` hides this package's."""
    keep_streams_usable()
    argv = sys.argv[1:]
    if argv[:1] == ["help"]:
        argv = [*argv[1:2], "--help"]
    if argv and argv[0] in SUMMARIES:
        _run(argv[0], argv[1:], f"mjlab-dist {argv[0]}")
        return
    lines = [f"  {name:<12} {summary}" for name, summary in SUMMARIES.items()]
    usage = "\n".join(["usage: mjlab-dist COMMAND ...", "", *lines])
    if not argv or argv[0] in ("-h", "--help"):
        print(usage)
        sys.exit(Exit.DONE if argv else Exit.USAGE)
    if argv[0] == "--version":
        print(f"mjlab-dist {version('mjlab-dist')}")
        sys.exit(Exit.DONE)
    near = did_you_mean(argv[0], SUMMARIES, f"use {listed(SUMMARIES, 'or')}")
    print(f"mjlab-dist: unknown command {printable(argv[0])}: {near}", file=sys.stderr)
    sys.exit(Exit.USAGE)


def share_cores(environ: MutableMapping[str, str]) -> None:
    """Let torch's idle threads sleep instead of spinning, in this process and its children.

    Call this function before importing torch. Otherwise, idle threads of GNU OpenMP spin for milliseconds, and training
    takes twice as long if another process is busy.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys():
        environ["GOMP_SPINCOUNT"] = "1000"


def _run(command: str, argv: Sequence[str], prog: str) -> None:
    share_cores(os.environ)
    number_by_bus(os.environ)
    if command != "doctor" and (text := prepare_opengl(os.environ)):  # doctor reports it as a finding
        print(f"Warning: {text}", file=sys.stderr)
    code: int = Exit.DONE
    try:
        main = _command(command)
        raise_at_interrupt()
        main(argv, prog)
    except SystemExit as end:
        if not isinstance(end.code, int):
            raise  # the code is a message, for example from a task's module
        code = end.code
    except UserError as error:
        print(f"{prog}: {printable(str(error))}", file=sys.stderr)
        code = error.exit_code
    except RankError as error:
        code = error.exit_code
    except KeyboardInterrupt:
        print(f"{prog}: ended by Ctrl-C", file=sys.stderr)
        code = 128 + signal.SIGINT
    _leave(code)


def _command(name: str) -> Callable[[Sequence[str], str], None]:
    """Return a command's function. To start fast, import only the command's module."""
    if name == "list-tasks":
        return _print_tasks
    return importlib.import_module(f"mjlab_dist.cli.{name.replace('-', '_')}").main


def _leave(code: int) -> None:
    """End with an exit code. If torchrun or SLURM started this process, skip the interpreter's shutdown.

    Threads of torch.distributed are still running. If one of them needs the interpreter during the shutdown, it aborts
    the process, and a finished run is reported as failed. After an error, the shutdown waits for NCCL's communicators,
    which may wait for ranks that wait for this rank.
    """
    if outside_launcher(os.environ):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    if not sys.modules.keys() & REPORT_LEAKS:
        gc.freeze()  # otherwise, the shutdown spends a second searching all objects of torch and Warp for cycles
    if code != Exit.DONE:
        sys.exit(code)


def _print_tasks(argv: Sequence[str], prog: str) -> None:
    """Print every installed task with its summary."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: {prog}\n\nPrint the installed tasks, one per line.")
        return
    if argv:
        raise UserError(f"{argv[0]}: {prog} takes no arguments")
    summaries = registry.task_summaries()
    if not summaries:
        raise UserError(
            f"no task is installed: the entry point group {registry.GROUP} has no entries; install mjlab-dist again"
        )
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:<{width}}  {summary}")
