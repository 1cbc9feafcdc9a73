"""Videos and frame strips of play: size, camera, several envs, episodes that end."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from conftest import Command
from mounts import mounted

import mjlab_dist_tasks.cartpole

TASK = "cartpole-balance"
PLAY = ("play", TASK, "--num-envs", "4", "--seconds", "0.9", "--env.episode-length-s", "0.3", "--no-disturbances")
SMALL = ("--width", "160", "--height", "120")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with a run of a cartpole. Its MJCF has a second camera, which looks down.

    Pictures have coarse shadows and edges, so that drawing without a GPU is faster.
    """
    place = tmp_path_factory.mktemp("play")
    mjcf = (Path(mjlab_dist_tasks.cartpole.__file__).parent / "cartpole.xml").read_text()
    fine, coarse = '<quality shadowsize="2048"/>', '<quality shadowsize="256" offsamples="0"/>'
    assert fine in mjcf
    above = '<camera name="above" pos="0 0 4"/></worldbody>'
    (place / "two_cameras.xml").write_text(mjcf.replace(fine, coarse).replace("</worldbody>", above))
    done = Command("trained", place).here(
        "train", TASK, "--gpu-ids", "None", "--num-envs", "8", "--max-iterations", "1",
        "--env.sim.model", str(place / "two_cameras.xml"),
    )  # fmt: skip
    assert done.code == 0, done.err
    return place


def test_the_video_continues_after_resets_and_shows_several_envs(command: Command, trained: Path) -> None:
    command.cwd = trained
    # Three envs in a grid of two columns
    done = command.here(*PLAY, "--env", "1", "3", "0", "--width", "322", "--height", "242", "--video", "grid.mp4")
    assert done.code == 0, done.err
    assert re.search(r"^12 episodes: .* mean length 30 steps$", done.out, re.MULTILINE), done.out
    assert done.out.splitlines()[-1] == "Video: grid.mp4"
    frames = iio.imread(trained / "grid.mp4").astype(int)
    assert frames.shape == (30, 242, 322, 3), "0.9 s are 90 steps of 10 ms, and every third step is drawn"
    assert frames[:, 124:, 164:].max() < 30, "there is no fourth env"
    # The step between two episodes changes the picture more than any other step
    jumps = np.abs(np.diff(frames[:, :, :160], axis=0)).mean(axis=(1, 2, 3))
    assert set(jumps.argsort()[-2:]) == {9, 19}, jumps
    # Only one env
    done = command.here(*PLAY, "--env", "3", *SMALL, "--video", "one.mp4")
    assert done.code == 0, done.err
    one = iio.imread(trained / "one.mp4").astype(int)
    assert one.shape == (30, 120, 160, 3)
    assert np.abs(frames[:, :120, 162:] - one).mean() < 3, "it is the upper right picture of the grid"
    assert np.abs(frames[:, :120, :160] - one).mean() > np.abs(frames[:, :120, 162:] - one).mean() + 0.2


def test_a_video_has_the_default_size_and_shows_the_scene(command: Command, trained: Path) -> None:
    command.cwd = trained
    done = command("play", TASK, "--num-envs", "1", "--env.episode-length-s", "0.5", "--video", "balance.mp4")
    assert done.code == 0, done.err
    frames = iio.imread(trained / "balance.mp4")
    assert frames.shape[1:] == (480, 848, 3)
    assert len(frames) == 17, "the video has 50 steps of 10 ms, and every third step is drawn"
    assert "Recording 17 of 17 frames" in done.out.splitlines()
    orange = (frames[0][..., 0] > 150) & (frames[0][..., 2] < 80)
    assert 200 < orange.sum() < 20_000, "the pole is in the picture"
    assert (frames[0] != frames[-1]).any(), "it moves"


def test_a_video_that_cannot_be_written_is_refused_in_one_line(command: Command, trained: Path) -> None:
    command.cwd = trained
    (trained / "full.mp4").symlink_to("/dev/full")
    done = command.here("play", TASK, *SMALL, "--env.episode-length-s", "0.1", "--video", "full.mp4")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("play: --video full.mp4: "), line


def test_without_a_viewer_the_episodes_are_measured(command: Command, trained: Path) -> None:
    command.cwd = trained
    short = command.here("play", TASK, "--env.episode-length-s", "0.5", "--num-envs", "2")
    assert re.search(r"^2 episodes.* 50 steps$", short.out, re.MULTILINE)
    wrong = command.here("play", TASK, "--env.episode-length", "0.5")
    assert wrong.code == 2
    assert " --env.episode-length-s?" in wrong.err
    never = command.here("play", TASK, "--env.episode-length-s", "0")
    assert never.code == 2
    assert never.err.startswith("play: --env.episode-length-s 0.0: ")


def test_a_camera_is_chosen_by_name(command: Command, trained: Path) -> None:
    command.cwd = trained
    frames: dict[str, np.ndarray] = {}
    for name, flags in {"default": (), "side": ("--camera", "side"), "above": ("--camera", "above")}.items():
        done = command.here(
            "play", TASK, "--num-envs", "1", "--seconds", "0.1", *flags, *SMALL, "--video", f"{name}.gif"
        )
        assert done.code == 0, done.err
        assert "No episode ended in this time" in done.out
        frames[name] = iio.imread(trained / f"{name}.gif").astype(int)
    assert frames["side"].shape == (4, 120, 160, 3)
    assert (frames["side"] == frames["default"]).all(), "the first camera is the default"
    assert np.abs(frames["above"] - frames["side"]).mean() > 10
    wrong = command.here("play", TASK, "--num-envs", "1", "--camera", "top", "--video", "top.mp4")
    assert wrong.code == 2
    assert wrong.err.splitlines()[-1] == "play: --camera top: there is no such camera; the model has side, above"
    assert not (trained / "top.mp4").exists()


def test_a_strip_shows_frames_at_equal_intervals(command: Command, trained: Path) -> None:
    command.cwd = trained
    once = ("play", TASK, "--num-envs", "4", "--env.episode-length-s", "0.3", "--no-disturbances", "--env", "2")
    done = command.here(*once, "--seconds", "0.9", "--width", "500", "--height", "100", "--frames", "three.png")
    assert done.code == 0, done.err
    # The strip has five frames, and thus four intervals. 0.9 s have 90 states, which allows intervals of up to 22 steps
    assert done.out.splitlines()[-1] == "Frames, one every 0.22 s: three.png"
    strip = iio.imread(trained / "three.png").astype(int)
    assert strip.shape == (100, 500, 3)
    frames = [strip[:, left : left + 98] for left in (0, 100, 200, 301, 401)]
    assert (strip[:, [98, 99, 198, 298, 300, 399]] == 255).all(), "white gaps"
    assert all(frame.min() < 200 for frame in frames)
    # Frames have the default size. The strip ends with the env's episode, after 30 steps
    done = command.here(*once, "--frames", "default.png")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1] == "Frames, one every 0.05 s: default.png"
    strip = iio.imread(trained / "default.png").astype(int)
    assert strip.shape == (200, 1200, 3)
    differences = [np.abs(strip[:, 200 * i : 200 * i + 195] - strip[:, :195]).mean() for i in range(6)]
    assert differences[0] == 0
    assert min(differences[1:]) > 0, "the cart moves"


def test_without_the_library_of_egl_the_ray_tracer_draws(command: Command, trained: Path) -> None:
    ctypes.CDLL("libEGL.so.1")
    library = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libEGL." in line)
    (run,) = (trained / "logs" / TASK).iterdir()
    small = ("--num-envs", "1", "--seconds", "0.1", "--width", "64", "--height", "48", "--video", "drawn.gif")
    play = (command.program("play"), TASK, "--run", str(run), *small)
    with mounted(command, f"mount --bind /dev/null {library}") as without_egl:
        done = without_egl("/usr/bin/env", "-u", "MUJOCO_GL", *play)
    assert done.code == 0, done.err
    assert "Warning: MuJoCo cannot render here" in done.out
    assert iio.imread(command.cwd / "drawn.gif").shape[1:] == (48, 64, 3)
