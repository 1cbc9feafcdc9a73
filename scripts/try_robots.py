"""Create a task for every robot in some folders, train it for three iterations, and draw the robot.

uv run python scripts/try_robots.py .venv/lib/python3.11/site-packages/gymnasium --work robots --output docs/robots.md

An MJCF counts as a robot if MuJoCo compiles it and it has a hinge or slide joint. The script stores results in the
folder --work. If it is run again, it skips robots that have a result. The page lists all results in this folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imageio.v3 as imageio
import mujoco
import numpy as np
import torch
from PIL import Image, ImageDraw

import mjlab_dist
from mjlab_dist.config import PlayConfig, TrainConfig
from mjlab_dist.env import Env
from mjlab_dist.play.video import Video
from mjlab_dist.sim import start_warp

TIMEOUT_S = 900.0
"""Maximum time of a command for one robot."""

NUM_ENVS = 16
"""Envs of a training run."""

ITERATIONS = 3
"""Iterations of a training run."""

SETTLE_STEPS = 10
"""Number of control steps that a robot is simulated before it is drawn."""

THUMBNAIL = (192, 144)
"""Width and height of one robot in a picture, in pixels. A picture shows all robots of a package."""

COLUMNS = 6
"""Robots per row of a picture."""

NOTES = {
    "gymnasium_robotics": (
        "Copies of gymnasium's robots, and the hands with touch sensors, are left out. gymnasium_robotics",
        "moves the base and the hand of the Fetch without motors. In `pick_and_place.xml`, actuators drive",
        "the two fingers, and `new-task` adds no motors. The other MJCFs of the Fetch have no actuators, so",
        "`new-task` adds motors for 11 joints.",
    ),
    "metaworld": (
        "All 43 scenes have the same arm, so only the arm itself and two scenes were tried. In the scenes,",
        "metaworld moves the hand with a mocap body, and actuators drive only the fingers. The file of the",
        "arm, `xyz_base.xml`, has no actuators, so `new-task` adds motors.",
    ),
}
"""Notes for the sections of some folders, as lines of the page."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """Result of one MJCF."""

    package: str
    """Name of the folder that was searched."""
    file: str
    """The MJCF, relative to this folder."""
    kind: str
    """Kind of robot that new-task reports; empty if new-task made no task."""
    problem: str
    """Reason why the task does not train; empty if it trains."""


def main() -> None:
    """Try all robots of the folders, or with --train, train and draw one task."""
    # Read the flags
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "folders", type=_absolute, nargs="+", help="folders with MJCFs; the page has a section per folder"
    )
    parser.add_argument("--work", type=_absolute, required=True, help="folder for tasks, runs and results")
    parser.add_argument("--only", nargs="+", default=["**/*.xml"], help="patterns of the MJCFs to try; default: all")
    parser.add_argument("--output", type=Path, help="page to write; pictures go to a folder next to it")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="number of robots to try at a time")
    parser.add_argument("--train", metavar="MODULE:FUNCTION", help="only train and draw this task; ignore the folders")
    args = parser.parse_args()
    if args.train:
        train_and_draw(args.train, args.work)
        return

    # Try the robots that have not been tried
    args.work.mkdir(parents=True, exist_ok=True)
    jobs = [(folder, path) for folder in args.folders for path in find_robots(folder, args.only)]
    with ThreadPoolExecutor(args.processes) as pool:
        results = list(pool.map(lambda job: try_once(job[0], job[1], args.work), jobs))
    trained = sum(not tried.problem for tried in results)
    print(f"{trained} of {len(results)} robots train")
    # Write the page
    if args.output:
        args.output.parent.mkdir(exist_ok=True)
        known = [Tried(**json.loads(file.read_text())) for file in args.work.glob("*/result.json")]
        known.sort(key=lambda tried: (tried.package, tried.file))
        args.output.write_text(page(known, args.work, args.output.parent / "pictures"))
        print(args.output)


def _absolute(path: str) -> Path:
    """Return an absolute path, because commands run in other folders. Symbolic links are kept."""
    return Path(path).absolute()


def find_robots(folder: Path, patterns: Sequence[str]) -> Iterator[Path]:
    """Yield the MJCFs in a folder that MuJoCo compiles and that have a joint to drive.

    Args:
        folder: The folder.
        patterns: Patterns that match the paths of MJCFs, relative to the folder.
    """
    mujoco.set_mju_user_warning(lambda _: None)
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        try:
            model = mujoco.MjModel.from_xml_path(str(path))
        except (ValueError, UnicodeDecodeError):
            continue
        if np.isin(model.jnt_type, (mujoco.mjtJoint.mjJNT_HINGE, mujoco.mjtJoint.mjJNT_SLIDE)).any():
            yield path


def try_once(folder: Path, path: Path, work: Path) -> Tried:
    """Return the stored result of a robot; if there is none, try the robot.

    Args:
        folder: The folder that was searched.
        path: The MJCF.
        work: Folder for tasks, runs and results.
    """
    relative = path.relative_to(folder)
    name = slug(f"{folder.name}-{relative.with_suffix('')}")
    place = work / name
    known = place / "result.json"
    if not known.is_file():
        place.mkdir(exist_ok=True)
        kind, problem = _try(name, path, place)
        known.write_text(json.dumps(dataclasses.asdict(Tried(folder.name, str(relative), kind, problem))))
        print(f"{folder.name}/{relative}: {problem or kind}", flush=True)
    return Tried(**json.loads(known.read_text()))


def _try(name: str, path: Path, place: Path) -> tuple[str, str]:
    """Make a task of an MJCF and train it. Return the values of `kind` and `problem` in :class:`Tried`."""
    module = name.replace("-", "_")
    made = _run([str(Path(sys.executable).parent / "mjlab-dist"), "new-task", name, "--mjcf", str(path)], place, {})
    lines = [line.strip() for line in made.stdout.splitlines()]
    said = [line.removeprefix("Found: ").rstrip(".") for line in lines if line.startswith("Found: ")]
    said += [f"goal: {line.split()[3]}" for line in lines if line.startswith("its goal is ")]
    kind = "; ".join(said)
    if made.returncode:
        return "", _last_line(made)
    trained = _run(
        [sys.executable, __file__, ".", "--work", str(place), "--train", f"{module}.config:{module}"],
        place,
        {"PYTHONPATH": str(place / module)},
    )
    return kind, _last_line(trained) if trained.returncode else ""


def _run(command: list[str], place: Path, extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=place, env=os.environ | extra, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"took longer than {TIMEOUT_S:.0f} s")


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines()
    last = lines[-1] if lines else f"exit code {done.returncode}"
    # Remove the name of the command or of the exception, and paths
    return re.sub(r"^(mjlab-dist new-task: (\S+ is not ready: )?|[\w.]+Error: )", "", last).partition(
        "; its files are"
    )[0]


def train_and_draw(reference: str, work: Path) -> None:
    """Train a task for some iterations, and write a picture of its robot.

    Args:
        reference: The task, as module:function.
        work: Folder for the run and the picture.

    Raises:
        SystemExit: If the loss of the value function is not finite.
    """
    module, _, function = reference.partition(":")
    config: TrainConfig = getattr(importlib.import_module(module), function)()
    result = mjlab_dist.train(
        dataclasses.replace(config, num_envs=NUM_ENVS, max_iterations=ITERATIONS),
        gpu_ids=None,
        log_root=str(work / "logs"),
        quiet=True,
    )
    if not np.isfinite(result.history["loss/value"]).all():
        raise SystemExit("the loss of the value function is not finite")
    start_warp("cpu")
    env = Env(config.env, num_envs=1, device="cpu")
    env.reset()
    for _ in range(SETTLE_STEPS):
        env.step(torch.zeros(1, env.num_actions))
    clip = work / "robot.mp4"
    video = Video(PlayConfig(video=str(clip)), env)
    video.frame()
    video.close()
    Image.fromarray(imageio.imread(clip, index=0)).resize(THUMBNAIL).save(work / "robot.png")


def slug(text: str) -> str:
    """Turn a text into the name of a task, which has lowercase letters, digits and hyphens.

    Args:
        text: Any text.
    """
    kept = "".join(char if char.isalnum() else "-" for char in text.lower())
    return "-".join(filter(None, kept.split("-")))


def page(results: list[Tried], work: Path, pictures: Path) -> str:
    """Return the page with all results, and write its pictures.

    Args:
        results: Results of all robots.
        work: Folder with the pictures of the robots.
        pictures: Folder for the pictures of the page.
    """
    trained = sum(not tried.problem for tried in results)
    lines = [
        "# Robots",
        "",
        "After reading this page, you know which public robots `new-task` turns into a task that trains, what",
        "it finds in their files, and why the other robots fail.",
        "",
        "Each section covers one folder with MJCFs. `new-task` was called for each MJCF that MuJoCo compiles",
        "and that has a joint to drive. Each task was trained for "
        f"{ITERATIONS} iterations with {NUM_ENVS} envs on a CPU:",
        f"{trained} of {len(results)} robots train without an error.",
        "[performance.md](performance.md#robots-of-new-task) shows how well four of these robots learn. The",
        "pictures are taken with the camera of the MJCF, if this camera shows the robot.",
        "`scripts/try_robots.py` makes this page.",
    ]
    for package in dict.fromkeys(tried.package for tried in results):
        of_package = [tried for tried in results if tried.package == package]
        trained = sum(not tried.problem for tried in of_package)
        lines += ["", f"## {package}", "", f"{trained} of {len(of_package)} robots train.", *NOTES.get(package, ())]
        drawn = draw_sheet([tried for tried in of_package if not tried.problem], work)
        if drawn is not None:
            pictures.mkdir(exist_ok=True)
            file = pictures / f"robots-{slug(package)}.png"
            drawn.save(file, optimize=True)
            lines += ["", f"![The robots of {package} after {SETTLE_STEPS} steps]({pictures.name}/{file.name})"]
        lines += ["", "| MJCF | result |", "|---|---|"]
        results_of = {t.file: f"does not train: {t.problem}" if t.problem else t.kind for t in of_package}
        lines += [f"| `{file}` | {result} |" for file, result in results_of.items()]
    return "\n".join(lines) + "\n"


def draw_sheet(results: list[Tried], work: Path) -> Image.Image | None:
    """Return a picture with all robots in rows; None if there are none.

    Args:
        results: Results of the robots.
        work: Folder with their pictures.
    """
    files = [(tried, work / slug(f"{tried.package}-{Path(tried.file).with_suffix('')}")) for tried in results]
    found = [(tried, place / "robot.png") for tried, place in files if (place / "robot.png").is_file()]
    if not found:
        return None
    width, height = THUMBNAIL
    rows = -(-len(found) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width, rows * height), "white")
    draw = ImageDraw.Draw(sheet)
    for i, (tried, file) in enumerate(found):
        corner = (i % COLUMNS * width, i // COLUMNS * height)
        sheet.paste(Image.open(file), corner)
        name = Path(tried.file).stem
        draw.text(
            (corner[0] + 4, corner[1] + 2), name if name != "robot" else Path(tried.file).parent.name, fill="white"
        )
    return sheet


if __name__ == "__main__":
    main()
