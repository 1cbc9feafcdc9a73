"""Run all tests and benchmarks that need a GPU, and write docs/gpu.md.

uv run python scripts/gpu_report.py

Each part runs in its own processes, with a time limit. The result of a part is stored as soon as the part ends. If the
script is run again, it skips the parts that are done and repeats the parts that failed. With `--dry-run`, the parts run
on the CPU with small sizes. A dry run skips parts that need a GPU, and parts that would run the same code as another
part. No network is needed. The exit code is 1 if a part failed, and 2 if no GPU can be used or a flag is wrong.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpu_page
from gpu_commands import ROOT, Commands, PartError
from gpu_parts import Part, list_parts
from gpu_site import Site, last_json
from gpu_sizes import DRY, FULL

RESULTS = "results"
"""Subdirectory of the data directory for the results."""

PART_LIMIT_S = 440.0
"""Time limit of a part in s. A training run that is stopped at this limit gets another minute to save a checkpoint."""

PROBE = (
    "import json, torch; "
    "print(json.dumps({'gpus': torch.cuda.device_count(), 'sum': torch.ones(8, device='cuda').sum().item()}))"
)
"""Program that computes on the GPU and prints the number of GPUs. It fails if torch cannot use the GPU."""


def main() -> None:
    """Run the parts, print a line at the start and end of each, and write the page."""
    # Choose the parts to run
    args = _parse(sys.argv[1:])
    _end_on_sigterm()
    data: Path = args.data
    commands = Commands(logs=data / "logs", on_cpu=args.dry_run)
    num_gpus = 0 if args.dry_run else _count_gpus(commands)
    sizes = DRY if args.dry_run else FULL
    parts = list_parts(sizes, num_gpus, args.peer_python is not None, args.dry_run)
    chosen = _choose(parts, args.parts)

    for number, part in enumerate(chosen, 1):
        # Skip parts that are done
        stored = read_result(data, part.name, args.dry_run)
        if stored.get("status") == "done" and not args.redo:
            print(f"[{number}/{len(chosen)}] {part.name}: already done", flush=True)
            continue
        print(f"[{number}/{len(chosen)}] {part.name} ...", flush=True)
        # Run the part, and store its result at once
        site = Site(
            sizes=sizes,
            num_gpus=num_gpus,
            data=data,
            commands=commands,
            peer_python=args.peer_python,
            continues=not args.redo,
        )
        commands.deadline = time.monotonic() + PART_LIMIT_S
        result = run_part(part, site)
        store_result(data, part.name, {**result, "dry_run": args.dry_run})
        print(f"    {part.name}: {_in_one_line(result)}", flush=True)
        # Write the page after every part, because this process may be ended during the next part.
        _write_page(args, parts)

    # Draw the pictures, write the complete page, and end with 1 if a part failed
    failed = [part.name for part in chosen if read_result(data, part.name, args.dry_run).get("status") == "failed"]
    _draw(args, parts)
    page = _write_page(args, parts)
    print(f"{page}; logs of all commands: {commands.logs}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; run this script again to repeat these parts")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run on the CPU with small sizes; skip parts that need a GPU or would run the same code as another part",
    )
    parser.add_argument("--parts", nargs="+", metavar="PART", help="run only these parts")
    parser.add_argument("--redo", action="store_true", help="repeat parts that are done")
    parser.add_argument(
        "--output",
        type=Path,
        help="directory of gpu.md and its pictures; default: docs, or with --dry-run the directory of --data",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="directory of results, logs and runs; default: logs/gpu-report, or logs/gpu-report-dry with --dry-run",
    )
    parser.add_argument("--peer-python", type=Path, help="Python that can import mjlab; without it, mjlab is skipped")
    args = parser.parse_args(argv)
    if args.peer_python is not None and not args.peer_python.is_file():
        parser.error(f"--peer-python {args.peer_python}: this file does not exist; give a Python that can import mjlab")
    args.peer_python = args.peer_python and args.peer_python.absolute()
    args.data = (args.data or ROOT / "logs" / ("gpu-report-dry" if args.dry_run else "gpu-report")).resolve()
    args.output = args.output or (args.data if args.dry_run else ROOT / "docs")
    return args


def _choose(parts: Sequence[Part], names: Sequence[str] | None) -> list[Part]:
    """Return the parts with these names, in the order of the report; end with exit code 2 if a name is unknown."""
    known = [part.name for part in parts]
    for name in names or ():
        if name not in known:
            print(f"--parts {name}: there is no such part; choose from {', '.join(known)}", file=sys.stderr)
            sys.exit(2)
    return [part for part in parts if not names or part.name in names]


def _end_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that the command in progress is killed."""

    def end(signum: int, _: object) -> None:
        sys.exit(128 + signum)

    signal.signal(signal.SIGTERM, end)


def _count_gpus(commands: Commands) -> int:
    """Return how many GPUs torch can use; end with exit code 2 if it can use none."""
    try:
        ended = commands.run([sys.executable, "-c", PROBE], limit_s=120, name="probe")
        ended.check("torch.ones(8, device='cuda')")
        return int(last_json(ended)["gpus"])
    except PartError as error:
        print(f"{error}\nNo GPU can be used: see `mjlab-dist doctor`, or use --dry-run", file=sys.stderr)
        sys.exit(2)


def run_part(part: Part, site: Site) -> dict[str, Any]:
    """Run a part.

    Args:
        part: The part.
        site: Sizes, devices and directories.

    Returns:
        A dict with the status (``done``, ``failed`` or ``skipped``), why the part failed or was skipped, its duration,
        when it started, the commit, and the figures.
    """
    start = time.monotonic()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    status, reason, data = "done", "", {}
    if part.missing:
        status, reason = "skipped", part.missing
    else:
        try:
            part.measure(site, data)
        except PartError as error:
            status, reason = "failed", str(error)
        except Exception as error:  # noqa: BLE001 (an error in one part must not prevent the other parts)
            status, reason = "failed", f"{type(error).__name__}: {error}"
    return {
        "status": status,
        "reason": reason,
        "seconds": time.monotonic() - start,
        "started": started,
        "commit": _commit(),
        "data": data,
    }


def _in_one_line(result: dict[str, Any]) -> str:
    reason = result["reason"].strip()
    last = f" ({reason.splitlines()[-1][:150]})" if reason else ""
    return f"{result['status']} in {result['seconds']:.1f} s{last}"


def _commit() -> str | None:
    """Return the short commit ID, followed by ``-dirty`` if files have been changed; None without git."""
    if shutil.which("git") is None:
        return None
    args = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(args, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def store_result(data: Path, name: str, result: dict[str, Any]) -> None:
    """Store the result of a part atomically.

    Args:
        data: Directory of the data.
        name: Name of the part.
        result: Its result.
    """
    path = data / RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


def read_result(data: Path, name: str, dry_run: bool) -> dict[str, Any]:
    """Return the stored result of a part; an empty dict if it is missing, damaged, or from the other kind of run.

    Args:
        data: Directory of the data.
        name: Name of the part.
        dry_run: Whether to return the result of a dry run, or else of a run on a GPU.
    """
    try:
        result = json.loads((data / RESULTS / f"{name}.json").read_text())
        return result if result["dry_run"] == dry_run else {}
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _results(args: argparse.Namespace, parts: Sequence[Part]) -> dict[str, Any]:
    return {part.name: read_result(args.data, part.name, args.dry_run) for part in parts}


def _write_page(args: argparse.Namespace, parts: Sequence[Part]) -> Path:
    return gpu_page.write_page(args.output, _results(args, parts), args.data, args.dry_run)


def _draw(args: argparse.Namespace, parts: Sequence[Part]) -> None:
    """Draw the pictures. If that fails, for example because matplotlib is not installed, only print a warning."""
    try:
        import gpu_plots  # noqa: PLC0415 (may not be installed)

        gpu_plots.draw(args.output, _results(args, parts))
    except Exception as error:  # noqa: BLE001 (figures matter more than pictures)
        print(f"Warning: no pictures: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
