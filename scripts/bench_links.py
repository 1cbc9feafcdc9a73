"""Measure training over slow networks for settings of --sync.period and --sync.compression.

Two ranks run in two network namespaces, each on its own core. All their traffic goes through a link of a given rate
and delay. Many Linux kernels lack `tc netem`, so this script simulates the link: it passes packets between two TUN
devices, delays each packet as the link would, and drops no packet while both devices are up. The script prints a table
with the round-trip time that ping measures, the training speed and the share of time spent waiting. With
--until-return, the table also has the time until the mean return reaches the given value. With --sums or --overlap, the
script instead measures sums of gradients, without training. It needs Linux and root.

    uv run python scripts/bench_links.py --rounds 3
    uv run python scripts/bench_links.py --sums
    uv run python scripts/bench_links.py --rounds 1 --until-return 900 --links 100m
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import itertools
import json
import multiprocessing
import os
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from timed import BIN, SKIPPED, clean_environment, spread

ADDRESSES = ("10.77.0.1", "10.77.0.2")
"""Address of each namespace; no other network is reachable from the namespace."""

PORT = "29500"

MTU = 9000
"""Maximum size of a packet, in bytes, as in many clusters."""

TUNSETIFF = 0x400454CA
"""Number of the ioctl request that creates a TUN device."""

IFF_TUN_NO_PI = 0x1001
"""Flags of a device for IP packets without a header."""


@dataclass(frozen=True)
class Link:
    """A link between two hosts."""

    name: str
    """Name in the table."""
    bits_per_s: float
    """Rate in each direction."""
    delay_s: float
    """Delay in each direction."""


LINKS = {
    "10g": Link("10 Gbit/s, 0.1 ms", 10e9, 1e-4),
    "1g": Link("1 Gbit/s, 1 ms", 1e9, 1e-3),
    "100m": Link("100 Mbit/s, 10 ms", 1e8, 1e-2),
}
"""Links by their name on the command line. Delays are one-way."""


SETTINGS = {
    "none": ("1", "none"),
    "bf16": ("1", "bf16"),
    "period-4": ("4", "none"),
    "period-16": ("16", "none"),
}
"""Names of settings on the command line, with their values of --sync.period and --sync.compression. No setting has both
a period above 1 and compression: with such a period, ranks exchange parameters instead of gradients, and compression
has no effect."""


@dataclass
class Direction:
    """One direction of a link, with the packets that are on their way from one device to the other."""

    source: int
    """File descriptor of the device that the packets come from."""
    target: int
    """File descriptor of the device that the packets go to."""
    link: Link
    """The link."""
    queue: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)
    """Packets with the times at which they arrive."""
    free_at: float = 0.0
    """Time at which the link has sent all packets so far, and can send the next one."""

    def receive(self, now: float) -> None:
        """Take all packets that wait at the source, and compute when each arrives."""
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(self.source, MTU)
                self.free_at = max(now, self.free_at) + 8 * len(packet) / self.link.bits_per_s
                self.queue.append((self.free_at + self.link.delay_s, packet))

    def deliver(self, now: float) -> None:
        """Pass on the packets that have arrived."""
        while self.queue and self.queue[0][0] <= now:
            packet = self.queue.popleft()[1]
            with contextlib.suppress(OSError):  # drop the packet if the target device is not up yet
                os.write(self.target, packet)


def relay(link: Link, devices: Sequence[str], ready: Connection) -> None:
    """Create the two devices and pass packets between them, until the process is ended.

    Args:
        link: The link.
        devices: Names of the devices.
        ready: Connection that this function closes when the devices exist.
    """
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # so that busy programs do not delay this one
    ends: list[int] = []
    for name in devices:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN_NO_PI))
        ends.append(end)
    ready.close()
    there, back = Direction(ends[0], ends[1], link), Direction(ends[1], ends[0], link)
    while True:
        due = min((one.queue[0][0] for one in (there, back) if one.queue), default=None)
        select.select(ends, [], [], None if due is None else max(0.0, due - time.monotonic()))
        now = time.monotonic()
        for one in (there, back):
            one.receive(now)
            one.deliver(now)


@contextlib.contextmanager
def linked(link: Link) -> Iterator[list[str]]:
    """Connect two new network namespaces by a link, and remove them at the end.

    Yields:
        The names of the namespaces.
    """
    devices = [f"link{i}-{os.getpid()}" for i in range(2)]
    spaces = [f"ns-{device}" for device in devices]
    context = multiprocessing.get_context("fork")
    with contextlib.ExitStack() as stack:
        for space in spaces:
            # Register the removal first, because a signal may end this script while `ip` adds the namespace.
            stack.callback(remove, space)
            run("ip", "netns", "add", space)
        # Start the relay, and move its devices into the namespaces
        own, theirs = context.Pipe(duplex=False)
        passes = context.Process(target=relay, args=(link, devices, theirs), daemon=True)
        passes.start()
        stack.callback(passes.join)
        stack.callback(passes.kill)
        theirs.close()
        with contextlib.suppress(EOFError):
            own.recv()
        for space, device, address in zip(spaces, devices, ADDRESSES, strict=True):
            run("ip", "link", "set", device, "netns", space)
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "link", "set", device, "mtu", str(MTU), "up")
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", device)
        yield spaces


def remove(space: str) -> None:
    """Remove a network namespace, if it exists."""
    if Path("/run/netns", space).exists():
        run("ip", "netns", "delete", space)


def end_on_signals() -> None:
    """Have this script remove the namespaces before a signal ends it.

    After the first signal, this script and the `ip` commands that remove the namespaces ignore these signals, because a
    second signal would interrupt the removal.
    """
    signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

    def end(signum: int, _: object) -> NoReturn:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + signum)

    for one in signals:
        signal.signal(one, end)


def run(*command: str) -> str:
    """Run a command and return its output. End this script if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def round_trip_ms(space: str) -> float:
    """Return the median round-trip time of small packets, in ms."""
    output = run("ip", "netns", "exec", space, "ping", "-c", "20", "-i", "0.05", ADDRESSES[1])
    return statistics.median(float(ms) for ms in re.findall(r"time=([\d.]+)", output))


def start(spaces: Sequence[str], command: Sequence[str], cwd: str) -> str:
    """Run a command twice, as rank 0 in the first namespace and as rank 1 in the second, each rank on its own core.

    Args:
        spaces: The namespaces.
        command: The command.
        cwd: Working directory.

    Returns:
        The output of rank 0.
    """
    cores = sorted(os.sched_getaffinity(0))
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", space, "taskset", "-c", str(cores[i % len(cores)]), *command],
            env=clean_environment({
                "RANK": str(i), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT,
            }),
            cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i, space in enumerate(spaces)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # has no effect on a rank that has ended
    if failed := [output for rank, output in zip(ranks, outputs, strict=True) if rank.returncode]:
        sys.exit(f"{' '.join(command)} failed:\n{failed[0][-3000:]}")
    return outputs[0]


def train(spaces: Sequence[str], flags: Sequence[str]) -> list[dict[str, float]]:
    """Train with a rank in each namespace, and return the rows of metrics.jsonl."""
    with tempfile.TemporaryDirectory() as root:
        start(spaces, [str(BIN / "train"), *flags], root)
        (metrics,) = Path(root).glob("logs/*/*/metrics.jsonl")
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def measured(name: str, spaces: Sequence[str], program: str) -> str:
    """Run a program on both ranks. Return a line with the link's round-trip time and the figures that rank 0 prints."""
    output = start(spaces, [sys.executable, str(Path(__file__).with_name(program))], str(Path.cwd()))
    figures: dict[str, float] = json.loads(output.splitlines()[-1])
    cells = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
    return f"{LINKS[name].name}, round trip {round_trip_ms(spaces[0]):.2f} ms: {cells}"


def describe(rows: Sequence[Sequence[dict[str, float]]], until: float | None) -> str:
    """Return the last cells of a table row.

    Args:
        rows: Rows of metrics.jsonl of each run with the same link and setting.
        until: A mean return, or None.

    Returns:
        Steps per second, the share of time in which ranks wait, and, with `until`, the time until the mean return
        reached it.
    """
    timed = [row[SKIPPED:] or row for row in rows]
    speeds = [statistics.median(row["steps_per_s"] for row in one) for one in timed]
    waits = [statistics.median(row["wait_share"] for row in one) for one in timed]
    cells = f"{spread(speeds)} | {statistics.median(waits):.0%} |"
    if until is None:
        return cells
    reached = [next((row["elapsed_s"] for row in one if (row["mean_return"] or 0) >= until), None) for one in rows]
    times = [seconds for seconds in reached if seconds is not None]
    return f"{cells} {spread(times) if times else '-'} s ({len(times)} of {len(reached)} runs) |"


def main() -> None:
    """Read the command line, measure, and print one table row per link and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cartpole-balance")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--num-envs", default="256", help="envs per rank")
    parser.add_argument("--iterations", help="iterations of a run; default: 35, or 150 with --until-return")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sums", action="store_true", help="do not train; measure the time of gloo's sums, in s")
    parser.add_argument("--overlap", action="store_true", help="do not train; run link_overlap.py")
    parser.add_argument(
        "--until-return", type=float, help="also print the time until the mean return reaches this value, in s"
    )
    args = parser.parse_args()
    end_on_signals()
    if args.sums or args.overlap:
        for name in args.links * args.rounds:
            with linked(LINKS[name]) as spaces:
                print(measured(name, spaces, "link_sums.py" if args.sums else "link_overlap.py"), flush=True)
        return
    iterations = args.iterations or ("35" if args.until_return is None else "150")
    # Each round measures all links and settings, so that other programs slow all of them down equally
    combinations = list(itertools.product(args.links, args.settings))
    found: dict[tuple[str, ...], list[list[dict[str, float]]]] = {one: [] for one in combinations}
    trips: dict[str, list[float]] = {name: [] for name in args.links}
    for _ in range(args.rounds):
        for name in args.links:
            with linked(LINKS[name]) as spaces:
                trips[name].append(round_trip_ms(spaces[0]))
                for one in [one for one in combinations if one[0] == name]:
                    period, compression = SETTINGS[one[1]]
                    flags = (
                        args.task, "--gpu-ids", "None", "--cpu-ranks", "1", "--num-envs", args.num_envs,
                        "--max-iterations", iterations, "--sync.period", period, "--sync.compression", compression,
                    )  # fmt: skip
                    found[one].append(train(spaces, flags))
                    print(" ".join(one), describe(found[one][-1:], args.until_return), file=sys.stderr, flush=True)
    # Table
    print("| link | round trip | period | compression | steps/s | waiting |", end="")
    print("" if args.until_return is None else f" time to {args.until_return:g} |")
    print("|---|---|---|---|---|---|", end="" if args.until_return is None else "---|")
    print()
    for one, rows in found.items():
        trip = f"{statistics.median(trips[one[0]]):.2f} ms"
        print(f"| {LINKS[one[0]].name} | {trip} | {' | '.join(SETTINGS[one[1]])} | {describe(rows, args.until_return)}")


if __name__ == "__main__":
    main()
