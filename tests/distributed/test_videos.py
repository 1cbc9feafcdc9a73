"""Videos that the installed train command makes do not change training, and their failures do not end training."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import imageio.v3 as iio
import psutil
import pytest
from conftest import Command
from processes import with_argument
from run_files import untimed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mjlab_dist.errors import Exit
from mjlab_dist.runs.run_dir import VIDEOS_DIR, list_videos, read_config_file, read_metrics, unfinished_path, video_path

TRAIN = (
    "train", "cartpole-balance", "--gpu-ids", "None", "--num-envs", "8", "--agent.num-steps-per-env", "8",
    "--checkpoint.interval", "5",
)  # fmt: skip
SLOW = ("--logger", "tensorboard", "slow_logger:Slow", "--max-iterations", "1000000")
VIDEOS = ("--video-interval", "5", "--video-length", "0.2")
NUM_FRAMES = 7  # 0.2 s are 20 steps of 10 ms, and every third step is a frame

WaitFor = Callable[[Callable[[], bool]], None]

pytestmark = pytest.mark.slow


def runs(root: Path) -> list[Path]:
    return sorted((root / "logs" / "cartpole-balance").glob("*"))


def films(command: Command) -> list[psutil.Process]:
    """Return the processes of a command that make videos."""
    return with_argument(command.processes(), "mjlab_dist.policies.film")


def num_videos(root: Path) -> int:
    return sum(len(list_videos(run)) for run in runs(root))


def test_two_ranks_train_as_without_videos_and_end_with_one(command: Command) -> None:
    two = (*TRAIN, "--cpu-ranks", "2", "--max-iterations", "7")
    # Files of the current directory shadow no modules, in no process
    for module in ("random", "logging", "queue", "numbers", "torch", "mujoco", "numpy"):
        (command.cwd / f"{module}.py").write_text("raise RuntimeError('shadowed')")
    done, without = command(*two, *VIDEOS, env={"MUJOCO_GL": "egl"}), command(*two)
    assert done.code == without.code == 0, done.err + without.err
    first, second = runs(command.cwd)
    assert untimed(first) == untimed(second)
    assert not (second / VIDEOS_DIR).exists()
    # The last checkpoint has a video, although 7 is not a multiple of 5
    assert list_videos(first)[-1] == 7
    assert f"Video: {video_path(first, 7).relative_to(command.cwd)}" in done.out
    assert done.warnings == []
    for iteration in list_videos(first):
        assert iio.imread(video_path(first, iteration)).shape == (NUM_FRAMES, 480, 848, 3)
    assert {path.suffix for path in (first / VIDEOS_DIR).iterdir()} == {".mp4"}
    # TensorBoard has the same videos
    (events,) = first.glob("events.out.*")
    shown = EventAccumulator(str(events))
    shown.Reload()
    images = shown.Images("video")
    assert [image.step for image in images] == list_videos(first)
    animation = iio.imread(images[-1].encoded_image_string)
    assert animation.shape == (3, 240, 424, 3)
    assert (animation[0] != animation[-1]).any(), "the pole moves"
    # Both video settings are in the run's config
    config = read_config_file(first)
    assert (config.video_interval, config.video_length) == (5, 0.2)


@pytest.mark.usefixtures("slow_training")
def test_training_continues_when_the_process_is_killed(command: Command, wait_for: WaitFor) -> None:
    process = command.start(*TRAIN, *VIDEOS, *SLOW)
    for killed in range(2):
        wait_for(lambda killed=killed: num_videos(command.cwd) > killed and len(films(command)) == 1)
        films(command)[0].kill()
    wait_for(lambda: not films(command))
    (run,) = runs(command.cwd)
    num_rows = len(read_metrics(run))
    wait_for(lambda: len(read_metrics(run)) > num_rows + 5)
    process.send_signal(signal.SIGTERM)
    done = command.finish(process)
    assert done.code == Exit.RESUMABLE, done.err
    first, second = done.warnings
    assert "killed (signal 9)" in first
    assert "started again" in first
    assert "without videos" in second


def test_ctrl_c_ends_the_wait_for_the_last_video(command: Command, wait_for: WaitFor) -> None:
    process = command.start(*TRAIN, *VIDEOS, "--cpu-ranks", "2", "--max-iterations", "3", stderr=subprocess.STDOUT)
    wait_for(lambda: len(films(command)) == 1)
    films(command)[0].suspend()  # the video is never finished
    unfinished = unfinished_path(video_path(runs(command.cwd)[0], 3))
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.touch()
    assert process.stdout is not None
    lines: list[str] = []
    while "Making the video of iteration 3" not in (lines or [""])[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], lines
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert "ending without the last video" in out
    assert "Trained 3 iterations" in out
    assert not list(unfinished.parent.iterdir())
    # A resumed run makes the missing video
    done = command("train", "--resume", str(runs(command.cwd)[0]), "--max-iterations", "4", "--cpu-ranks", "1")
    assert done.code == 0, done.err
    assert list_videos(runs(command.cwd)[0]) == [4]


def test_without_opengl_the_ray_tracer_draws_and_without_ffmpeg_there_is_one_warning(command: Command) -> None:
    short = (*TRAIN, "--video-interval", "5", "--video-length", "0.05", "--max-iterations", "2")
    done = command(*short, env={"MUJOCO_GL": "disable"})
    assert done.code == 0, done.err
    (warning,) = done.warnings
    assert "cannot render" in warning
    assert iio.imread(video_path(runs(command.cwd)[0], 2)).shape[0] == 2
    done = command(*short, env={"IMAGEIO_FFMPEG_EXE": str(command.cwd / "none")})
    assert done.code == 0, done.err
    (warning,) = done.warnings
    assert "without videos" in warning
    assert list_videos(runs(command.cwd)[1]) == []


@pytest.mark.usefixtures("slow_training")
def test_the_process_ends_with_a_killed_launcher(command: Command, wait_for: WaitFor) -> None:
    process = command.start(*TRAIN, *VIDEOS, *SLOW, "--cpu-ranks", "2")
    wait_for(lambda: [len(film.cpu_affinity()) for film in films(command)] == [1])
    (film,) = films(command)
    assert film.nice() == 10 + psutil.Process().nice()
    process.kill()
    process.communicate()
    wait_for(lambda: not command.leftovers())


@pytest.mark.long
def test_weights_and_biases_gets_the_video(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NETRC", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
        monkeypatch.setenv(name, str(command.cwd / name.lower()))
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = command(*TRAIN, *VIDEOS, "--max-iterations", "2", "--logger", "wandb")
    assert done.code == 0, done.err
    assert done.warnings == []
    (run,) = runs(command.cwd)
    (logged,) = run.glob("wandb/offline-run-*/files/media/videos/video_2_*.mp4")
    assert logged.read_bytes() == video_path(run, 2).read_bytes()
    assert [path.name for path in (run / VIDEOS_DIR).iterdir()] == ["iteration_2.mp4"]


WITHOUT = """
import sys, threading
import mjlab_dist

mjlab_dist.train("cartpole-balance", gpu_ids=None, num_envs=8, max_iterations=1, quiet=True)
assert not {"mjlab_dist.learn.video_process", "mjlab_dist.policies", "imageio"} & set(sys.modules)
assert "videos" not in [thread.name for thread in threading.enumerate()]
"""


def test_nothing_is_imported_or_started_without_the_flag(command: Command) -> None:
    done = command(command.script(WITHOUT))
    assert done.code == 0, done.err
