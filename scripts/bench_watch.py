"""Measure how much mjlab-dist watch slows down training on the same machine, with and without its page in a browser.

uv run python scripts/bench_watch.py

One run, which has one rank, trains all the time. Each round measures the speed and CPU time of this run in three modes:
without watch, with watch but without a page, and with watch and a page in headless Chromium, which draws without a GPU.
The script prints the ratios to training without watch in the same round. --spare-cores is the number of cores
that only watch and the browser use; training uses the other cores. With 0, training, watch and the browser share all
cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from playwright.sync_api import sync_playwright
from timed import BIN, clean_environment, spread

CHROMIUM_FLAGS = ("--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")

MODES = ("alone", "watch without a page", "watch with a page")


class Window(NamedTuple):
    """Measurements over some iterations."""

    iterations_per_s: float
    """Speed of the training."""
    train_ms: float
    """CPU time of the training per iteration, in ms."""
    watch_cores: float
    """Number of cores that watch uses on average: its CPU time divided by the duration of the measurement."""
    browser_cores: float
    """Number of cores that the browser uses on average."""


def main() -> None:
    """Print the measurements of each mode, and the ratios to training without watch in the same round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=100, help="iterations per measurement")
    parser.add_argument("--task", default="cartpole-balance")
    parser.add_argument("--spare-cores", type=int, default=1, help="number of cores for watch and the browser only")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if args.spare_cores:
        os.sched_setaffinity(0, cores[: args.spare_cores])  # watch and the browser inherit these cores
    found: dict[str, list[Window]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as root, _training(args.task, root, cores[args.spare_cores :]) as train:
        for _ in range(args.rounds):
            for mode in MODES:
                with _watched(mode, root) as (watch, browser):
                    found[mode].append(_measure(root, args.iterations, train, watch, browser))
    alone = found["alone"]
    for mode, windows in found.items():
        speeds = [window.iterations_per_s / base.iterations_per_s for window, base in zip(windows, alone, strict=True)]
        costs = [window.train_ms / base.train_ms for window, base in zip(windows, alone, strict=True)]
        print(
            f"{mode}: {spread([w.iterations_per_s for w in windows], 2)} iterations/s, ratio {spread(speeds, 2)}; "
            f"CPU time of training {spread([w.train_ms for w in windows])} ms per iteration, ratio {spread(costs, 2)}; "
            f"cores of watch {spread([w.watch_cores for w in windows], 3)}, of the browser "
            f"{spread([w.browser_cores for w in windows], 2)}"
        )


@contextlib.contextmanager
def _training(task: str, root: str, cores: Sequence[int]) -> Iterator[psutil.Process]:
    """Train on some cores until the context ends."""
    flags = ("--gpu-ids", "None", "--cpu-ranks", "1", "--num-envs", "64", "--max-iterations", "1000000")
    pinned = ("taskset", "--cpu-list", ",".join(map(str, cores)))
    command = [*pinned, str(BIN / "train"), task, *flags, "--log-root", root]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL) as process:
        try:
            while not list(Path(root).glob("*/*/checkpoints/*.pt")):
                assert process.poll() is None, "training has ended"
                time.sleep(0.2)
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def _watched(mode: str, root: str) -> Iterator[tuple[psutil.Process | None, psutil.Process | None]]:
    """Run watch until the context ends, except in the mode `alone`. Wait until watch has built the run's robot."""
    if mode == "alone":
        yield None, None
        return
    command = [str(BIN / "mjlab-dist"), "watch", "latest", "--log-root", root]
    with (
        subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as process,
        sync_playwright() as playwright,
    ):
        assert process.stdout is not None
        url = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM_FLAGS)
        try:
            tab = browser.new_page(viewport={"width": 800, "height": 600})
            tab.goto(f"{url}?fixedDpr=0.5")
            tab.get_by_text(re.compile("^policy of iteration")).wait_for(timeout=300_000)
            if mode == "watch without a page":
                browser.close()
                yield psutil.Process(process.pid), None
            else:
                (program,) = [one for one in psutil.process_iter() if _is_browser(one)]
                yield psutil.Process(process.pid), program
                browser.close()
        finally:
            process.send_signal(signal.SIGINT)


def _is_browser(process: psutil.Process) -> bool:
    """Return whether a process is the main process of the browser that this program has started."""
    with contextlib.suppress(psutil.Error):
        ours = {parent.pid for parent in process.parents()}
        is_main = not any(word.startswith("--type=") for word in process.cmdline())
        return os.getpid() in ours and "chrom" in process.name() and is_main
    return False


def _measure(
    root: str, iterations: int, train: psutil.Process, watch: psutil.Process | None, browser: psutil.Process | None
) -> Window:
    """Measure over some iterations of the training."""
    (metrics,) = Path(root).glob("*/*/metrics.jsonl")
    processes = (train, watch, browser)
    start_s, start, before = time.monotonic(), _num_rows(metrics), [_cpu_s(process) for process in processes]
    while _num_rows(metrics) < start + iterations:
        time.sleep(0.05)
    took_s, done = time.monotonic() - start_s, _num_rows(metrics) - start
    used = [_cpu_s(process) - first for process, first in zip(processes, before, strict=True)]
    return Window(done / took_s, 1000 * used[0] / done, used[1] / took_s, used[2] / took_s)


def _num_rows(metrics: Path) -> int:
    return metrics.read_bytes().count(b"\n")


def _cpu_s(process: psutil.Process | None) -> float:
    """Return the CPU time of a process and its descendants, in s."""
    if process is None:
        return 0.0
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    main()
